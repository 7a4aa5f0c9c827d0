"""Samples of a replica that wait for a place, for their pages, or leave.

Invariant: none of them waits for its environment: those are open turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.live.rollout.weight_slots import WeightSlot
from engine.pipeline.records import SampleProgress
from engine.policy.lineage import WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A sample that was granted and has no place yet."""

    progress: SampleProgress
    """The progress that it goes on from; without a token where it is fresh."""
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class Arriving:
    """A sample that was handed over, whose keys and values are on their way."""

    offer: bytes
    progress: SampleProgress
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Samples that are about to leave."""

    progress: Sequence[SampleProgress]
    decoding: Sequence[tuple[WeightSlot, str, int]]
    """Those of them that have pages: their sequences, and which samples these are."""

    @property
    def samples(self) -> tuple[int, ...]:
        return tuple(sample for _, _, sample in self.decoding)
