"""Keys and values of what is being decoded: one row a sequence, and the two ways of attending that use it.

    N layers    R rows of the cache    B rows in use    K key/value heads    G query heads a key/value head
    L positions    E width of a head    T packed tokens    S tokens of one rectangle
    Bk = B·K

Invariants:
- row r holds positions 0 … length(r) - 1; what lies beyond is never attended to;
- memory grows with the longest sequence seen, by doubling, up to the model's positions.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.inference.scheduler import RowMove
from engine.models.decoder import DecoderConfig, PackedAttention, in_rows
from engine.models.packing import Rectangle

_FIRST_POSITIONS = 64


class KvCache:
    def __init__(self, config: DecoderConfig, *, num_rows: int, device: str) -> None:
        self._max_positions = config.max_positions
        self._kv_N2RKLE = torch.zeros(
            (
                config.num_layers,
                2,
                num_rows,
                config.num_kv_heads,
                min(_FIRST_POSITIONS, config.max_positions),
                config.head_dim,
            ),
            dtype=config.dtype,
            device=device,
        )

    @property
    def num_positions(self) -> int:
        return self._kv_N2RKLE.shape[4]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        k_RKLE, v_RKLE = self._kv_N2RKLE[index]
        return k_RKLE, v_RKLE

    def reserve(self, num_positions: int) -> None:
        if num_positions <= self.num_positions:
            return
        grown = min(max(num_positions, 2 * self.num_positions), self._max_positions)
        old = self._kv_N2RKLE
        self._kv_N2RKLE = old.new_zeros((*old.shape[:4], grown, old.shape[5]))
        self._kv_N2RKLE[:, :, :, :, : old.shape[4]] = old

    def move(self, moves: Sequence[RowMove], num_positions: int) -> None:
        for move in moves:
            held = self._kv_N2RKLE[:, :, :, :, :num_positions]
            held[:, :, move.target] = held[:, :, move.source]


class PrefillAttention:
    """Whole prompts attend to themselves; their keys and values are kept."""

    def __init__(self, cache: KvCache, rectangles: Sequence[Rectangle], first_row: int) -> None:
        """Member i of the rectangles is row `first_row + i`."""
        self._cache = cache
        self._rectangles = tuple(rectangles)
        self._first_row = first_row
        self._attend = PackedAttention(self._rectangles)

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        sizes = [rectangle.num_tokens for rectangle in self._rectangles]
        for cached_RKLE, new_TKE in zip(self._cache.layer(layer), (k_TKE, v_TKE), strict=True):
            for rectangle, new_SKE in zip(self._rectangles, torch.split(new_TKE, sizes), strict=True):
                rows = [self._first_row + member for member in rectangle.members]
                cached_RKLE[rows, :, : rectangle.width] = in_rows(new_SKE, rectangle)
        return self._attend(layer, q_THE, k_TKE, v_TKE)


class DecodeAttention:
    """One new token a row attends to all that its row holds. A matrix product a row and head: on a CPU, a query of
    length one is twice as slow through scaled_dot_product_attention."""

    def __init__(self, cache: KvCache, positions_B: Tensor, num_positions: int, num_kv_heads: int) -> None:
        """`num_positions`: those of the longest row, the new token included."""
        self._cache = cache
        self._rows = positions_B.shape[0]
        self._num_positions = num_positions
        heads = torch.arange(self._rows * num_kv_heads, device=positions_B.device)
        positions_Bk = positions_B.repeat_interleave(num_kv_heads)
        self._write_Bk = heads * cache.num_positions + positions_Bk
        hidden_BkL = torch.arange(num_positions, device=positions_B.device) > positions_Bk.unsqueeze(1)
        self._hidden_Bk1L = hidden_BkL.unsqueeze(1)

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        rows, num_heads, head_dim = q_THE.shape
        k_BkLE, v_BkLE = (
            self._append(cached_RKLE, new_TKE)
            for cached_RKLE, new_TKE in zip(self._cache.layer(layer), (k_TKE, v_TKE), strict=True)
        )
        q_BkGE = q_THE.reshape(k_BkLE.shape[0], -1, head_dim) * (1.0 / math.sqrt(head_dim))
        scores_BkGL = torch.bmm(q_BkGE, k_BkLE.transpose(1, 2)).masked_fill_(self._hidden_Bk1L, -math.inf)
        weights_BkGL = torch.softmax(scores_BkGL, dim=-1, dtype=torch.float32).to(q_THE.dtype)
        return torch.bmm(weights_BkGL, v_BkLE).view(rows, num_heads * head_dim)

    def _append(self, cached_RKLE: Tensor, new_TKE: Tensor) -> Tensor:
        cached_RkLE = cached_RKLE.flatten(0, 1)
        cached_RkLE.flatten(0, 1).index_copy_(0, self._write_Bk, new_TKE.flatten(0, 1))
        return cached_RkLE[: self._write_Bk.shape[0], : self._num_positions]
