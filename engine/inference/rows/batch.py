"""The decode batch: the data of each row, on the device, carried from step to step while rows join and leave.

    B rows in use    J positions with uniforms drawn ahead

Invariants:
- row i here is row i of the scheduler;
- a token's uniform depends on its seed and position only, whenever it was drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.inference.sampling import RowSampling, uniforms

_DRAWN_AHEAD: Final = 32  # positions; one hash over many takes as long as over one


@dataclass(slots=True, kw_only=True)
class DecodeBatch:
    tokens_B: Tensor
    positions_B: Tensor
    seeds_B: Tensor
    sampling: RowSampling | None = None
    """None: not computed for the present rows yet."""
    uniforms_BJ: Tensor | None = None
    num_drawn: int = 0

    def chance(self) -> Tensor | None:
        """The uniforms for the tokens at `positions_B`; None: all rows are greedy."""
        if self.sampling is None or self.sampling.temperatures_B1 is None:
            return None
        if self.uniforms_BJ is None or self.num_drawn == _DRAWN_AHEAD:
            self.uniforms_BJ, self.num_drawn = _draw_ahead(self.seeds_B, self.positions_B), 0
        self.num_drawn += 1
        return self.uniforms_BJ[:, self.num_drawn - 1]

    def keep(self, rows: Sequence[int]) -> None:
        self.sampling = None
        rows_B = torch.tensor(rows, device=self.tokens_B.device)
        self.tokens_B, self.positions_B, self.seeds_B = (
            each_B.index_select(0, rows_B) for each_B in (self.tokens_B, self.positions_B, self.seeds_B)
        )
        if self.uniforms_BJ is not None:
            self.uniforms_BJ = self.uniforms_BJ.index_select(0, rows_B)

    def add(self, other: "DecodeBatch") -> None:
        self.sampling = None
        if self.uniforms_BJ is not None:  # the new rows' uniforms must end with those of the present rows
            drawn_BJ = _draw_ahead(other.seeds_B, other.positions_B + 1 - self.num_drawn)
            self.uniforms_BJ = torch.cat((self.uniforms_BJ, drawn_BJ))
        self.tokens_B = torch.cat((self.tokens_B, other.tokens_B))
        self.positions_B = torch.cat((self.positions_B, other.positions_B))
        self.seeds_B = torch.cat((self.seeds_B, other.seeds_B))


def _draw_ahead(seeds_B: Tensor, positions_B: Tensor) -> Tensor:
    ahead_J = torch.arange(_DRAWN_AHEAD, device=positions_B.device)
    return uniforms(seeds_B.unsqueeze(1), positions_B.unsqueeze(1) + ahead_J)
