"""Which of the trajectories that a step is given are part of it."""

from dataclasses import dataclass

import numpy as np

from engine.training.batch import Ints, TrainingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Trusted trajectories, without masked truncated ones. Empty if their models wrote nothing: then the step trains
    nothing and measures all trajectories."""

    members: Ints
    num_given: int

    @classmethod
    def of(cls, given: TrainingBatch, *, masks_truncated: bool = False) -> "Learned":
        chosen = np.flatnonzero(given.trusted_N & ~given.cut_N if masks_truncated else given.trusted_N)
        members = chosen if given.num_written_N[chosen].any() else chosen[:0]
        return cls(members=members, num_given=len(given))
