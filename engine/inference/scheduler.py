"""Who has which row of the batch. No torch.

    submit → waiting → row 0 … row n-1 → ended

Invariants:
- rows 0 … n-1 are taken and no other: a row that ends is refilled by the last one, so the batch is only as large as
  what still runs, which is what matters on a heavy tail;
- waiting sequences start in the order of their submission;
- a sequence leaves exactly once.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.inference.port import SequenceOutput, SequenceRequest


@dataclass(slots=True, kw_only=True)
class LiveSequence:
    request: SequenceRequest
    max_new_tokens: int
    """What was asked for, or less where the model's positions end."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self.token_ids)

    @property
    def last_token(self) -> int:
        return self.token_ids[-1] if self.token_ids else self.request.prompt_ids[-1]

    def end(self, reason: Literal["stop", "length", "aborted"]) -> SequenceOutput:
        return SequenceOutput(
            sequence_id=self.request.sequence_id,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            reason=reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMove:
    source: int
    target: int


class Scheduler:
    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._ids: set[str] = set()
        self.waiting: deque[LiveSequence] = deque()
        self.rows: list[LiveSequence] = []

    def submit(self, sequences: Sequence[LiveSequence]) -> None:
        """All or none."""
        ids = [each.request.sequence_id for each in sequences]
        repeated = self._ids.intersection(ids) or {each for each in ids if ids.count(each) > 1}
        if repeated:
            raise ValueError(f"sequence_id: must not be in flight already, got {min(repeated)!r}")
        self._ids.update(ids)
        self.waiting.extend(sequences)

    def admit(self) -> range:
        """Fill free rows; the rows that are new."""
        first_new = len(self.rows)
        while self.waiting and len(self.rows) < self._max_rows:
            self.rows.append(self.waiting.popleft())
        return range(first_new, len(self.rows))

    def retire(self, rows: Collection[int]) -> list[RowMove]:
        """Free these rows; what has to be copied, in this order, to close the gaps."""
        moves: list[RowMove] = []
        for row in sorted(rows, reverse=True):  # from the end, so that the last row is never one that ends too
            self._ids.discard(self.rows[row].request.sequence_id)
            last = self.rows.pop()
            if row < len(self.rows):
                self.rows[row] = last
                moves.append(RowMove(source=len(self.rows), target=row))
        return moves

    def withdraw(self, sequence_ids: Collection[str]) -> list[LiveSequence]:
        """Take these out of the waiting line."""
        withdrawn = [each for each in self.waiting if each.request.sequence_id in sequence_ids]
        if withdrawn:
            self.waiting = deque(each for each in self.waiting if each.request.sequence_id not in sequence_ids)
            self._ids.difference_update(each.request.sequence_id for each in withdrawn)
        return withdrawn
