"""Samples of a replica that are queued, arriving or leaving.

Invariant: none of them waits for its environment; those that do are open turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.live.rollout.weight_slots import WeightSlot
from engine.pipeline.records import SampleProgress
from engine.policy.lineage import WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A granted sample without a place yet."""

    progress: SampleProgress
    """The progress that the sample resumes from; empty if it is fresh."""
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class Arriving:
    """A sample handed over to this replica whose keys and values are in transit."""

    offer: bytes
    progress: SampleProgress
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Samples that are about to leave this replica."""

    progress: Sequence[SampleProgress]
    decoding: Sequence[tuple[WeightSlot, str, int]]
    """The samples with pages: slot, sequence, sample number."""

    @property
    def samples(self) -> tuple[int, ...]:
        return tuple(sample for _, _, sample in self.decoding)
