"""A relay's actor: one process per host that holds weights in shared memory and forwards them over links.

Invariant: the actor frees memory that dead processes left on this host before it allocates any.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import ray

from engine.live.body.actor import BodyActor
from engine.live.body.loop import Body, Loop
from engine.live.process.links import Links
from engine.live.relay.body import RelayBody
from engine.live.relay.view import RelayView
from engine.live.weights.segments import sweep
from engine.pipeline.messages.addresses import relay_address
from engine.pipeline.messages.message import Message
from engine.pipeline.relay.brain import ANCHOR_EVERY, RelayBrain
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)

VIEW_WITHIN_S: Final = 10.0

Seen = TypeVar("Seen")


def look_into(loop: Loop, view: Callable[[Any], Seen]) -> Seen:
    """Returns a view of a body, taken on the body's own loop for a caller on another thread."""
    seen: Future[Seen] = Future()

    def look(body: Any) -> list[Message]:
        seen.set_result(view(body))
        return []

    loop.call(look)
    return seen.result(timeout=VIEW_WITHIN_S)


class RelayActor(BodyActor):
    def __init__(
        self,
        *,
        spec: JobSpec,
        host: int,
        hosts: Sequence[int] = (0,),
        incarnation: int,
        links: Links,
        recordings: Path | None = None,
        anchor_every: int = ANCHOR_EVERY,
    ) -> None:
        """`hosts`: those that have a relay now; more may join."""
        self._built_with: dict[str, Any] = {
            "host": host,
            "hosts": tuple(hosts),
            "incarnation": incarnation,
            "anchor_every": anchor_every,
        }
        self._links, self._listens = links, spec.rollout.replicas > 1
        super().__init__(
            part=relay_address(host), incarnation=incarnation, recordings=recordings, built_with=self._built_with
        )

    def build(self) -> Body:
        for name in sweep():
            log.info("removed segment=%s of dead processes", name)
        host = self._built_with["host"]
        return RelayBody(
            brain=partial(RelayBrain, **self._built_with),
            owner=f"{self._links.run}-relay{host}",
            listen=self._links.address() if self._listens else None,
            token=self._links.token,
            post=self._send,
            on_loop=lambda call: self._loop.call(call),
        )

    @ray.method(concurrency_group="inbox")
    def view(self) -> RelayView:
        return look_into(self._loop, RelayBody.view)

    @ray.method(concurrency_group="inbox", num_returns=0)
    def end(self) -> None:
        """Frees the memory at once. If the process is only killed, the next `sweep` frees it."""
        self._loop.call(lambda body: body.end())
