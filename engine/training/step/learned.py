"""Which of the trajectories that a step is given are part of it."""

from dataclasses import dataclass

import numpy as np

from engine.training.batch import Ints, TrainingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Those that are trusted; none where they wrote nothing: then the step only looks at all of them."""

    members: Ints
    num_given: int

    @classmethod
    def of(cls, given: TrainingBatch) -> "Learned":
        trusted = np.flatnonzero(given.trusted_N)
        members = trusted if given.num_written_N[trusted].any() else trusted[:0]
        return cls(members=members, num_given=len(given))
