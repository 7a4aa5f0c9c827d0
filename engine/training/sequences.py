"""The sequences of a batch, which are attention's units: a trajectory is one, unless it has breaks into segments.

    response of trajectory n    a a a a │ h h h b b │ h h h h h c        two breaks: three sequences

    prompt a a a a      h h h b b      h h h h h c

    N trajectories    Q sequences, those of a trajectory one after the other    A, R tokens (batch.py)
    M written tokens of the step, in its trajectories' order

A later segment begins with the rewritten history that the model read there: none of it is written by the model, and its
first token takes the place of a prompt.

Invariants:
- every token of a response is in exactly one sequence, so that each written token is trained once;
- without breaks, sequences are trajectories, with the same indexes.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from engine.training.batch import Ints, TrainingBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    owners_Q: Ints
    """The trajectory of each sequence."""
    is_first_Q: Ints
    """1 for the first sequence of a trajectory."""
    lengths_Q: Ints
    """All tokens, also those after the last written one."""
    beginning_starts_Q: Ints
    """Places in A; the same for sequences that share a prompt."""
    beginning_lengths_Q: Ints
    rest_starts_Q: Ints
    """The place in R of the first token after the beginning."""
    last_written_Q: Ints
    """The place in the rest of the last written token; the model reads neither it nor later tokens. 0 if none."""
    num_written_Q: Ints
    slot_starts_Q: Ints
    """The place in M of the first written token."""

    @property
    def input_lengths_Q(self) -> Ints:
        """How many tokens of each sequence the model reads; 0 for a sequence without written tokens."""
        return np.where(self.num_written_Q > 0, self.beginning_lengths_Q + self.last_written_Q, 0)

    @classmethod
    def of(cls, batch: TrainingBatch) -> Self:
        whole = cls._from_trajectories(batch)
        return cls._cut(batch, whole) if batch.num_breaks_N.any() else whole

    @classmethod
    def _from_trajectories(cls, batch: TrainingBatch) -> Self:
        num_written_N = batch.num_written_N
        return cls(
            owners_Q=np.arange(len(batch)),
            is_first_Q=np.ones(len(batch), dtype=np.int64),
            lengths_Q=batch.prompt_lengths_N + batch.response_lengths_N,
            beginning_starts_Q=batch.prompt_starts_N,
            beginning_lengths_Q=batch.prompt_lengths_N,
            rest_starts_Q=batch.response_starts_N,
            last_written_Q=batch.last_written_N,
            num_written_Q=num_written_N,
            slot_starts_Q=num_written_N.cumsum() - num_written_N,
        )

    @classmethod
    def _cut(cls, batch: TrainingBatch, whole: Self) -> Self:
        """Cuts trajectories at their breaks: one row per sequence, in the order of the fields."""
        rows: list[tuple[int, ...]] = []
        for owner in range(len(batch)):
            start = int(batch.response_starts_N[owner])
            ends = [*batch.breaks_of(owner).tolist(), int(batch.response_lengths_N[owner])]
            slot, begins = int(whole.slot_starts_Q[owner]), 0
            for ends_at in ends:
                is_first = begins == 0
                rest = start + begins + (not is_first)
                written = np.flatnonzero(batch.tokens.written_R[rest : start + ends_at])
                num_before = int(batch.prompt_lengths_N[owner]) if is_first else 1
                rows.append(
                    (
                        owner,
                        int(is_first),
                        num_before + start + ends_at - rest,
                        int(batch.prompt_starts_N[owner]) if is_first else batch.first_responses_A + start + begins,
                        num_before,
                        rest,
                        int(written[-1]) if len(written) else 0,
                        len(written),
                        slot,
                    )
                )
                slot, begins = slot + len(written), ends_at
        columns = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        return cls(**dict(zip(cls.__dataclass_fields__, columns, strict=True)))
