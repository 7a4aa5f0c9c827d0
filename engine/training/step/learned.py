"""Selects the trajectories that a step trains on."""

from dataclasses import dataclass

import numpy as np

from engine.training.batch import Ints, TrainingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Trusted trajectories, without masked truncated ones. Empty if these have no written tokens: the step then trains
    on nothing and measures all trajectories."""

    members: Ints
    num_given: int

    @classmethod
    def of(cls, given: TrainingBatch, *, masks_truncated: bool = False) -> "Learned":
        chosen = np.flatnonzero(given.trusted_N & ~given.cut_N if masks_truncated else given.trusted_N)
        members = chosen if given.num_written_N[chosen].any() else chosen[:0]
        return cls(members=members, num_given=len(given))
