"""Releases of versions whose evaluations are done: relays need not keep them any longer.

Invariant: a release goes to every relay, repeatedly, since a relay that misses it would keep the version forever.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.addresses import relay_address
from engine.pipeline.messages.to_relay import VersionReleased
from engine.policy.lineage import WeightsId

RELEASE_AGAIN_AFTER_S: Final = 30.0
MAX_REMEMBERED: Final = 4


class Releases:
    def __init__(self, *, num_relays: int) -> None:
        self.relays: Sequence[int] = range(num_relays)
        self._released: deque[VersionReleased] = deque(maxlen=MAX_REMEMBERED)
        self._sent_at = 0.0

    def release(self, weights: WeightsId) -> list[Effect]:
        released = VersionReleased(weights=weights)
        self._released.append(released)
        return self._send(released)

    def on_tick(self, now: float) -> list[Effect]:
        if now - self._sent_at < RELEASE_AGAIN_AFTER_S:
            return []
        self._sent_at = now
        return [effect for released in self._released for effect in self._send(released)]

    def _send(self, released: VersionReleased) -> list[Effect]:
        return [Send(to=relay_address(host), message=released) for host in self.relays]
