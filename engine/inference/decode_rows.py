"""Keys and values that the rows of the decode batch attend to: two layouts behind one face, `DecodeRows`.

`WindowRows`, on a CPU: beside its blocks every row has a dense copy, and all rows end at the same column:

    row 0   · · · · a a a a a a │            a step writes column c of every row with one slice copy, no index; a row's
    row 1   b b b b b b b b b b │ c          start never moves, so neither does the mask; columns before the longest
    row 2   · · · · · · · c c c │            row's start are not looked at. Keys lie transposed: three times as fast.

What a row writes goes to its blocks only when somebody else may read it: at its end, or when it moves.

`PagedRows`, on a GPU: new keys and values go to the blocks at once, and every layer gathers what it reads. No copy is
kept, so the cache's size is what `kv_tokens` says.

    N layers    R rows there is room for    B rows in use    K key/value heads    G query heads a key/value head
    E width of a head    C columns    L columns looked at    M blocks of the longest row    X slots    Bk = B·K

Invariants:
- rows 0 … B-1 are those of the scheduler, in its order;
- a step is prepare, one call a layer, advance;
- after `flush({row: end}, rows)` the blocks of that row hold its first `end` tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.inference.memory import untouched_zeros
from engine.inference.page_store import PageStore
from engine.inference.scheduler import LiveSequence, RowMove
from engine.models.decoder import DecoderConfig

_FIRST_COLUMNS: Final = 128  # most short answers never make the window grow


class DecodeRows(Protocol):
    def join(self, joining: Sequence[LiveSequence]) -> None:
        """They take the next rows; their blocks hold all but their last token."""

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None: ...

    def prepare(self, rows: Sequence[LiveSequence], positions_B: Tensor) -> None: ...

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor: ...

    def advance(self) -> None: ...

    def flush(self, ends: Mapping[int, int], rows: Sequence[LiveSequence]) -> None: ...


class WindowRows:
    def __init__(self, config: DecoderConfig, store: PageStore, *, max_rows: int, device: str) -> None:
        self._config = config
        self._store = store
        self._max_rows = max_rows
        self._device = device
        # A tensor: on a CPU, multiplying by a plain number costs twice as much.
        self._scale = torch.tensor(1.0 / math.sqrt(config.head_dim), dtype=config.dtype, device=device)
        self._starts: list[int] = []
        self._end = 0  # the column that the next step writes
        self._num_columns = 0
        self._first = 0  # the first column that a row in use begins at
        self._hidden_Bk1C: Tensor | None = None
        self._is_stale = True  # who is in which row, and with it the mask
        self._allocate(_FIRST_COLUMNS)

    def join(self, joining: Sequence[LiveSequence]) -> None:
        lengths = [len(each.tokens) - 1 for each in joining]
        longest = max(lengths)
        if longest > self._end or not self._starts:
            self._rebase(max([longest, *(self._end - start for start in self._starts)]))
        rows = slice(len(self._starts), len(self._starts) + len(joining))
        begin, end = self._end - longest, self._end
        self._starts += [end - length for length in lengths]
        self._is_stale = True
        # Hidden is multiplied by 0 and not left out, and what an ended row left there may be no number.
        self._v_NRKCE[:, rows, :, :begin] = 0.0
        if longest:
            slots: list[int] = []
            for each, length in zip(joining, lengths, strict=True):
                slots += [0] * (longest - length) + self._store.slots(each.table, 0, length)
            k_NnKE, v_NnKE = self._store.gather(self._store.on_device(slots)).unbind(1)
            shape = (k_NnKE.shape[0], len(joining), longest, *k_NnKE.shape[2:])
            v_NJLKE = v_NnKE.view(shape)
            if min(lengths) < longest:
                starts_J1 = longest - torch.tensor(lengths, device=self._device).unsqueeze(1)
                hidden_JL = torch.arange(longest, device=self._device) < starts_J1
                v_NJLKE.masked_fill_(hidden_JL[:, :, None, None], 0.0)
            self._k_NRKEC[:, rows, :, :, begin:end] = k_NnKE.view(shape).permute(0, 1, 3, 4, 2)
            self._v_NRKCE[:, rows, :, begin:end] = v_NJLKE.transpose(2, 3)

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None:
        for move in moves:
            start, target, source = self._starts[move.source], move.target, move.source
            self._k_NRKEC[:, target, :, :, start : self._end] = self._k_NRKEC[:, source, :, :, start : self._end]
            self._v_NRKCE[:, target, :, : self._end] = self._v_NRKCE[:, source, :, : self._end]
            self._starts[target] = start
        del self._starts[num_rows:]
        self._is_stale = True

    def prepare(self, rows: Sequence[LiveSequence], positions_B: Tensor) -> None:
        if self._end == self._num_columns:
            self._rebase(self._end - min(self._starts))
        if self._is_stale:
            self._first = min(self._starts)
            starts_B = torch.tensor(self._starts, device=self._device)
            starts_Bk11 = starts_B.repeat_interleave(self._config.num_kv_heads).view(-1, 1, 1)
            columns_C = torch.arange(self._num_columns, device=self._device)
            is_ragged = max(self._starts) != self._first
            self._hidden_Bk1C = columns_C < starts_Bk11 if is_ragged else None
            self._is_stale = False

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        num_rows, num_heads, head_dim = q_THE.shape
        k_RKEC, v_RKCE = self._layers[layer]
        first, now = self._first, self._end
        k_RKEC[:num_rows, :, :, now] = k_TKE
        v_RKCE[:num_rows, :, now] = v_TKE
        num_queues = num_rows * k_TKE.shape[1]
        k_BkEL = k_RKEC.flatten(0, 1)[:num_queues, :, first : now + 1]
        v_BkLE = v_RKCE.flatten(0, 1)[:num_queues, first : now + 1]
        q_BkGE = (q_THE * self._scale).view(num_queues, -1, head_dim)
        scores_BkGL = torch.bmm(q_BkGE, k_BkEL)
        if self._hidden_Bk1C is not None:
            scores_BkGL.masked_fill_(self._hidden_Bk1C[:, :, first : now + 1], -math.inf)
        weights_BkGL = torch.softmax(scores_BkGL.float(), dim=-1).to(q_THE.dtype)
        return torch.bmm(weights_BkGL, v_BkLE).view(num_rows, num_heads * head_dim)

    def advance(self) -> None:
        self._end += 1

    def flush(self, ends: Mapping[int, int], rows: Sequence[LiveSequence]) -> None:
        row_n: list[int] = []
        column_n: list[int] = []
        slots: list[int] = []
        for row, end in ends.items():
            live, start = rows[row], self._starts[row]
            row_n += [row] * (end - live.num_read)
            column_n += range(start + live.num_read, start + end)
            slots += self._store.slots(live.table, live.num_read, end)
            live.num_read = max(live.num_read, end)
        if slots:
            k_nNKE = self._k_NRKEC[:, row_n, :, :, column_n]
            v_nNKE = self._v_NRKCE[:, row_n, :, column_n]
            self._store.scatter(self._store.on_device(slots), k_nNKE.transpose(0, 1), v_nNKE.transpose(0, 1))

    def _rebase(self, width: int) -> None:
        """All rows end at column `width`, with at least as much room behind it."""
        num_rows, kept = len(self._starts), min(self._end, width)
        source, target = slice(self._end - kept, self._end), slice(width - kept, width)
        old_k, old_v, is_too_small = self._k_NRKEC, self._v_NRKCE, 2 * width > self._num_columns
        if is_too_small:
            self._allocate(2 * width)
        if num_rows and (is_too_small or source != target):
            # Copies first: the two may overlap.
            self._k_NRKEC[:, :num_rows, ..., target] = old_k[:, :num_rows, ..., source].clone()
            self._v_NRKCE[:, :num_rows, :, target] = old_v[:, :num_rows, :, source].clone()
        self._starts = [start + width - self._end for start in self._starts]
        self._end = width
        self._is_stale = True

    def _allocate(self, num_columns: int) -> None:
        config = self._config
        # An odd number of cache lines: at a power of two, the cells of one column all want the same few lines.
        num_columns = (-(-num_columns // 32) * 2 + 1) * 16
        shape = (config.num_layers, self._max_rows, config.num_kv_heads)
        dtype, device, width = config.dtype, self._device, config.head_dim
        self._k_NRKEC = untouched_zeros((*shape, width, num_columns), dtype=dtype, device=device)
        self._v_NRKCE = untouched_zeros((*shape, num_columns, width), dtype=dtype, device=device)
        self._layers = list(zip(self._k_NRKEC, self._v_NRKCE, strict=True))
        self._num_columns = num_columns


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
