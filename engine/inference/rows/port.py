"""The port of the decode rows: the batch that decodes a token a step.

Invariants:
- rows 0 … B-1 are the scheduler's rows in the same order, which follows `arrange`;
- a row's decoded token follows from its tokens, its sampling parameters and the weights, not from the other rows;
- after `flush({row: end}, rows)` the blocks of that row hold its first `end` tokens.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from engine.inference.scheduler import LiveSequence, RowMove


class Decoded(NamedTuple):
    """The next token of each row."""

    tokens: list[int]
    logprobs: list[float]


class DecodeRows(Protocol):
    def join(self, joining: Sequence[LiveSequence]) -> None:
        """The sequences take the next rows; their blocks hold all their tokens but the last."""

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None: ...

    def arrange(self) -> Sequence[int] | None:
        """The new order, as former row numbers; None: unchanged."""

    def decode(self, rows: Sequence[LiveSequence]) -> Decoded: ...

    def flush(self, ends: Mapping[int, int], rows: Sequence[LiveSequence]) -> None: ...
