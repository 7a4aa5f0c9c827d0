"""The face of the decode rows: the batch that gets a token a step, and all that a step needs of it.

Invariants:
- rows 0 … B-1 are those of the scheduler, in its order, which follows `arrange`;
- what `decode` says of a row follows from its tokens, its sampling parameters and the weights, not from the others;
- after `flush({row: end}, rows)` the blocks of that row hold its first `end` tokens.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from engine.inference.scheduler import LiveSequence, RowMove


class Said(NamedTuple):
    """Of each row its next token."""

    tokens: list[int]
    logprobs: list[float]


class DecodeRows(Protocol):
    def join(self, joining: Sequence[LiveSequence]) -> None:
        """They take the next rows; their blocks hold all but their last token."""

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None: ...

    def arrange(self) -> Sequence[int] | None:
        """The rows in the order in which they stand from now on; None: as before."""

    def decode(self, rows: Sequence[LiveSequence]) -> Said: ...

    def flush(self, ends: Mapping[int, int], rows: Sequence[LiveSequence]) -> None: ...
