"""Seals: the sha256 of visible versions, computed afterwards and compared with that of the previous relay.

Hashes of chunks catch errors in transfer. A seal checks the version in memory when the transfer is done: when the
relays after this one have the version too, so that nothing waits for the seal and no core is taken from them.

Invariant: a version that differs from the previous relay's is dropped and fetched again.
"""

from collections.abc import Collection

from engine.pipeline.effects import SealWeights
from engine.policy.lineage import WeightsId

Seal = tuple[WeightsId, str]


class Seals:
    def __init__(self) -> None:
        self._own: dict[WeightsId, str] = {}
        self._before: dict[WeightsId, str] = {}
        self._asked: set[WeightsId] = set()

    def due(self, settled: Collection[WeightsId]) -> list[SealWeights]:
        due = [weights for weights in settled if weights not in self._asked]
        self._asked.update(due)
        return [SealWeights(weights=weights) for weights in due]

    @property
    def own(self) -> tuple[Seal, ...]:
        return tuple(self._own.items())

    def take(self, weights: WeightsId, sha256: str) -> None:
        self._own[weights] = sha256

    def receive(self, seals: tuple[Seal, ...]) -> None:
        """Takes the seals of the previous relay."""
        self._before = dict(seals)

    def broken(self, visible: Collection[WeightsId]) -> list[WeightsId]:
        """Returns versions that differ, and forgets them and those no longer visible."""
        broken = [
            weights
            for weights, sha256 in self._own.items()
            if weights in visible and self._before.get(weights, sha256) != sha256
        ]
        self._own = {each: seal for each, seal in self._own.items() if each in visible and each not in broken}
        self._asked &= set(visible) - set(broken)
        return broken
