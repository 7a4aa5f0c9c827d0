"""Seals: the sha256 of versions that are shown, taken afterwards and compared with that of the relay before.

Hashes of the wire and of memory are for accidents on the way. A seal is of what lies here when everything is done: when
the relays after this one have the version too, so that nothing waits for it and no core is taken from them.

Invariant: what lies here otherwise than at the relay before is given up, and comes again.
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

    def hear(self, seals: tuple[Seal, ...]) -> None:
        """Of the relay before."""
        self._before = dict(seals)

    def broken(self, visible: Collection[WeightsId]) -> list[WeightsId]:
        """And forgets them, and those that are here no more."""
        broken = [
            weights
            for weights, sha256 in self._own.items()
            if weights in visible and self._before.get(weights, sha256) != sha256
        ]
        self._own = {each: seal for each, seal in self._own.items() if each in visible and each not in broken}
        self._asked &= set(visible) - set(broken)
        return broken
