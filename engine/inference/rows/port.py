"""The face of the decode rows' keys and values, whatever their layout.

Invariants:
- rows 0 … B-1 are those of the scheduler, in its order, which follows `arrange`;
- a step is arrange, prepare, one call a layer, advance;
- after `flush({row: end}, rows)` the blocks of that row hold its first `end` tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from engine.inference.scheduler import LiveSequence, RowMove


class DecodeRows(Protocol):
    def join(self, joining: Sequence[LiveSequence]) -> None:
        """They take the next rows; their blocks hold all but their last token."""

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None: ...

    def arrange(self) -> Sequence[int] | None:
        """The rows in the order in which they stand from now on; None: as before."""

    def prepare(self, rows: Sequence[LiveSequence], positions_B: Tensor) -> None: ...

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor: ...

    def advance(self) -> None: ...

    def flush(self, ends: Mapping[int, int], rows: Sequence[LiveSequence]) -> None: ...
