"""A window: keys and values of rows that end at the same column, dense, in addition to their blocks.

    row 0   · · · · a a a a a a │            a step writes column c of every row with one slice copy, no index; a row's
    row 1   b b b b b b b b b b │ c          start never moves, so neither does the mask; columns before the longest
    row 2   · · · · · · · c c c │            row's start are not read. Keys are stored transposed: three times as fast.

    N layers    R rows at most    B rows in use    J joining rows    K key/value heads    G query heads a key/value head
    E width of a head    C columns    L columns that are read    Bk = B·K

Invariants:
- rows 0 … B-1 are in use and no others;
- values before a row's start are 0 or the row's own: hidden values are multiplied by 0, and values that another row
  left there may be NaN.
"""

import math
from collections.abc import Collection, Sequence
from typing import Final

import torch
from torch import Tensor

from engine.inference.memory import untouched_zeros
from engine.inference.page_store import PageStore
from engine.inference.scheduler import LiveSequence
from engine.models.decoder import DecoderConfig

_FIRST_COLUMNS: Final = 128  # for most short answers the window never grows


class Window:
    def __init__(self, config: DecoderConfig, store: PageStore, *, max_rows: int, device: str) -> None:
        self._config = config
        self._store = store
        self._max_rows, self._windows = max_rows, config.windows
        self._device = device
        # A tensor: on a CPU, a product with a Python number takes twice as long.
        self._scale = torch.tensor(1.0 / math.sqrt(config.head_dim), dtype=config.dtype, device=device)
        self._starts: list[int] = []
        self._end = 0  # the column that the next step writes
        self._num_columns = 0
        self._first = 0  # the first column that a row in use begins at
        self._hidden_Bk1C: Tensor | None = None
        self._is_stale = True  # the rows have changed, and with them the mask
        self._allocate(_FIRST_COLUMNS)

    @property
    def num_rows(self) -> int:
        return len(self._starts)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self._end - min(self._starts, default=self._end)

    def longer_than(self, num_tokens: int) -> list[int]:
        return [row for row, start in enumerate(self._starts) if self._end - start > num_tokens]

    def join(self, joining: Sequence[LiveSequence]) -> None:
        lengths = [len(each.tokens) - 1 for each in joining]
        rows, begin, end = self._add(lengths)
        if longest := end - begin:
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

    def take(self, other: "Window", rows: Sequence[int]) -> None:
        """Copies these rows of another window, which keeps them until they are closed there."""
        num_before = self.num_rows
        self._add([other._end - other._starts[row] for row in rows])
        for place, row in enumerate(rows, start=num_before):
            source, target = slice(other._starts[row], other._end), slice(self._starts[place], self._end)
            self._k_NRKEC[:, place, :, :, target] = other._k_NRKEC[:, row, :, :, source]
            self._v_NRKCE[:, place, :, target] = other._v_NRKCE[:, row, :, source]
            self._v_NRKCE[:, place, :, : self._starts[place]] = 0.0

    def _add(self, lengths: Sequence[int]) -> tuple[slice, int, int]:
        """Adds rows of these lengths; returns the rows, and the columns of the longest."""
        longest = max(lengths)
        if longest > self._end or not self._starts:
            self._rebase(max(longest, self.longest))
        rows = slice(len(self._starts), len(self._starts) + len(lengths))
        begin, end = self._end - longest, self._end
        self._starts += [end - length for length in lengths]
        self._is_stale = True
        self._v_NRKCE[:, rows, :, :begin] = 0.0
        return rows, begin, end

    def close(self, gone: Collection[int]) -> dict[int, int]:
        """Removes rows; returns the moved rows with their new numbers."""
        num_left = len(self._starts) - len(gone)
        gaps = [row for row in range(num_left) if row in gone]
        fillers = [row for row in range(num_left, len(self._starts)) if row not in gone]
        for gap, filler in zip(gaps, fillers, strict=True):  # for an index of rows torch would copy far more
            start, end = self._starts[filler], self._end
            self._k_NRKEC[:, gap, :, :, start:end] = self._k_NRKEC[:, filler, :, :, start:end]
            self._v_NRKCE[:, gap, :, :end] = self._v_NRKCE[:, filler, :, :end]
            self._starts[gap] = start
        del self._starts[num_left:]
        self._is_stale = True
        return dict(zip(fillers, gaps, strict=True))

    def prepare(self) -> None:
        if self._end == self._num_columns:
            self._rebase(self.longest)
        if self._is_stale:
            self._first = min(self._starts)
            starts_B = torch.tensor(self._starts, device=self._device)
            starts_Bk11 = starts_B.repeat_interleave(self._config.num_kv_heads).view(-1, 1, 1)
            columns_C = torch.arange(self._num_columns, device=self._device)
            is_ragged = max(self._starts) != self._first
            self._hidden_Bk1C = columns_C < starts_Bk11 if is_ragged else None
            self._is_stale = False

    def attend(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        num_rows, num_heads, head_dim = q_THE.shape
        k_RKEC, v_RKCE = self._layers[layer]
        now, window = self._end, self._windows[layer]
        first = self._first if window is None else max(self._first, now + 1 - window)
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

    def flush(self, ends: Sequence[tuple[int, LiveSequence, int]]) -> None:
        """Writes to blocks. `ends`: rows, their sequences, and how many of the first tokens the blocks must have."""
        row_n: list[int] = []
        column_n: list[int] = []
        slots: list[int] = []
        for row, live, end in ends:
            start = self._starts[row]
            row_n += [row] * (end - live.num_read)
            column_n += range(start + live.num_read, start + end)
            slots += self._store.slots(live.table, live.num_read, end)
            live.num_read = max(live.num_read, end)
        if slots:
            k_nNKE = self._k_NRKEC[:, row_n, :, :, column_n]
            v_nNKE = self._v_NRKCE[:, row_n, :, column_n]
            self._store.scatter(self._store.on_device(slots), k_nNKE.transpose(0, 1), v_nNKE.transpose(0, 1))

    def _rebase(self, width: int) -> None:
        """Moves all rows so that they end at column `width`, with at least as much room after it."""
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
        # An odd number of cache lines: with a power of two, all cells of a column map to the same few lines.
        num_columns = (-(-num_columns // 32) * 2 + 1) * 16
        shape = (config.num_layers, self._max_rows, config.num_kv_heads)
        dtype, device, width = config.dtype, self._device, config.head_dim
        self._k_NRKEC = untouched_zeros((*shape, width, num_columns), dtype=dtype, device=device)
        self._v_NRKCE = untouched_zeros((*shape, num_columns, width), dtype=dtype, device=device)
        self._layers = list(zip(self._k_NRKEC, self._v_NRKCE, strict=True))
        self._num_columns = num_columns
