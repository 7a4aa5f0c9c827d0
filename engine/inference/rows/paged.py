"""Rows that attend to the blocks themselves, on a GPU: new keys and values go there at once, and every layer gathers
what it reads. No copy is kept, so the cache's size is what `kv_tokens` says.

    B rows in use    K key/value heads    E width of a head    L tokens looked at    M blocks of the longest row
    X slots    R rows there is room for
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.inference.page_store import PageStore
from engine.inference.scheduler import LiveSequence, RowMove
from engine.models.decoder import DecoderConfig


class PagedRows:
    def __init__(self, config: DecoderConfig, store: PageStore, *, max_rows: int, device: str) -> None:
        self._store = store
        self._device = device
        self._blocks_RM = torch.zeros((max_rows, 1), dtype=torch.int64, device=device)
        self._num_known: list[int] = []  # blocks of each row that `_blocks_RM` has

    def join(self, joining: Sequence[LiveSequence]) -> None:
        self._num_known += [0] * len(joining)

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None:
        for move in moves:
            self._blocks_RM[move.target] = self._blocks_RM[move.source]
            self._num_known[move.target] = self._num_known[move.source]
        del self._num_known[num_rows:]

    def arrange(self) -> None:
        return None

    def prepare(self, rows: Sequence[LiveSequence], positions_B: Tensor) -> None:
        self._learn_blocks(rows)
        num_tokens = max(len(each.tokens) for each in rows)
        slots_BL = self._store.slots_of_blocks(self._blocks_RM[: len(rows)])[:, :num_tokens]
        hidden_BL = torch.arange(num_tokens, device=self._device) > positions_B.unsqueeze(1)
        self._visible_B11L = ~hidden_BL[:, None, None]
        self._slots_x = torch.where(hidden_BL, slots_BL[:, :1], slots_BL).flatten()
        self._written_B = slots_BL.gather(1, positions_B.unsqueeze(1)).squeeze(1)

    def _learn_blocks(self, rows: Sequence[LiveSequence]) -> None:
        longest = max(len(each.table.blocks) for each in rows)
        if longest > self._blocks_RM.shape[1]:
            self._blocks_RM = functional.pad(self._blocks_RM, (0, 2 * longest - self._blocks_RM.shape[1]))
        new = [
            (row, at, block)
            for row, (each, known) in enumerate(zip(rows, self._num_known, strict=True))
            if known < len(each.table.blocks)
            for at, block in enumerate(each.table.blocks[known:], start=known)
        ]
        if new:
            row_n, at_n, block_n = torch.tensor(new, device=self._device).unbind(1)
            self._blocks_RM[row_n, at_n] = block_n
            self._num_known = [len(each.table.blocks) for each in rows]

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        k_XKE, v_XKE = self._store.layer(layer)
        mixed_BH1E = functional.scaled_dot_product_attention(
            q_THE.unsqueeze(2),
            self._append(k_XKE, k_TKE),
            self._append(v_XKE, v_TKE),
            attn_mask=self._visible_B11L,
            enable_gqa=q_THE.shape[1] != k_TKE.shape[1],
        )
        return mixed_BH1E.flatten(1)

    def _append(self, stored_XKE: Tensor, new_BKE: Tensor) -> Tensor:
        """All that each row reads, as BKLE."""
        stored_XKE.index_copy_(0, self._written_B, new_BKE)
        gathered_xKE = stored_XKE.index_select(0, self._slots_x)
        return gathered_xKE.view(new_BKE.shape[0], -1, *new_BKE.shape[1:]).transpose(1, 2)

    def advance(self) -> None: ...

    def flush(self, ends: Mapping[int, int], rows: Sequence[LiveSequence]) -> None: ...
