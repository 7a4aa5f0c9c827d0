"""Rows in bands of similar length, each in a window of its own, on a CPU: a short row is not multiplied with the
columns of the longest one.

    band 0   a a a ·        rows of up to 32 tokens
             b b b b
    band 1   c c c c c c    all longer ones

Invariants:
- rows are sorted by band, and within a band in the order of its window;
- a row only moves to a longer band: when it has outgrown its own, or when its own has too few rows left to pay off.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from engine.inference.page_store import PageStore
from engine.inference.rows.window import Window
from engine.inference.scheduler import LiveSequence, RowMove
from engine.models.decoder import DecoderConfig

# The longest row of each band but the last. More bands would cost more in calls than they save in reads.
LONGEST: Final = (32, 256)
# A band of its own pays off if it saves a layer so many bytes.
WORTH_BYTES: Final = 2**18

Place = tuple[int, int]
"""A band, and a row in its window."""


class Bands:
    """An attention over all bands."""

    def __init__(self, config: DecoderConfig, store: PageStore, *, max_rows: int, device: str) -> None:
        num_bands = len(LONGEST) + 1
        self._bands = [Window(config, store, max_rows=max_rows, device=device) for _ in range(num_bands)]
        self._column_bytes = 2 * config.num_kv_heads * config.head_dim * config.dtype.itemsize
        self._places: list[Place] = []
        self._is_stale = False  # rows joined, left or changed their band since the last `arrange`
        self._occupied: list[Window] = []

    def join(self, joining: Sequence[LiveSequence]) -> None:
        by_band: dict[int, list[LiveSequence]] = {}
        for each in joining:
            band = _band_of(len(each.tokens))
            members = by_band.setdefault(band, [])
            self._places.append((band, self._bands[band].num_rows + len(members)))
            members.append(each)
        for band, members in by_band.items():
            self._bands[band].join(members)
        self._is_stale = True

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None:
        gone = set(self._places)
        for move in moves:
            self._places[move.target] = self._places[move.source]
        del self._places[num_rows:]
        self._close_gaps(gone.difference(self._places))

    def _close_gaps(self, gone: set[Place], places: Mapping[Place, Place] | None = None) -> None:
        """`places`: old and new places of rows that have moved to another band."""
        moved = dict(places or {})
        for band, window in enumerate(self._bands):
            rows = {row for of_band, row in gone if of_band == band}
            if rows:
                moved.update(((band, old), (band, new)) for old, new in window.close(rows).items())
        self._places = [moved.get(place, place) for place in self._places]
        self._is_stale = True

    def arrange(self) -> Sequence[int] | None:
        for band, longest in enumerate(LONGEST):
            self._move_on(band, longest)
        if not self._is_stale:
            return None
        self._is_stale = False
        self._occupied = [window for window in self._bands if window.num_rows]
        places, rows = self._places, list(range(len(self._places)))
        order = sorted(rows, key=places.__getitem__)
        self._places = [places[row] for row in order]
        return None if order == rows else order

    def _move_on(self, band: int, longest: int) -> None:
        window = self._bands[band]
        if not window.num_rows:
            return
        if window.longest >= longest:  # the next step adds a token
            self._move(band, window.longer_than(longest - 1), to=band + 1)
        longer = next((at for at in range(band + 1, len(self._bands)) if self._bands[at].num_rows), None)
        if longer is not None and window.num_rows:
            num_columns = window.num_rows * (self._bands[longer].longest - window.longest)
            if num_columns * self._column_bytes < WORTH_BYTES:
                self._move(band, range(window.num_rows), to=longer)

    def _move(self, band: int, rows: Sequence[int], *, to: int) -> None:
        host = self._bands[to]
        places = {(band, row): (to, host.num_rows + at) for at, row in enumerate(rows)}
        host.take(self._bands[band], rows)
        self._close_gaps(set(places), places)

    def prepare(self) -> None:
        for window in self._occupied:
            window.prepare()

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        if len(self._occupied) == 1:
            return self._occupied[0].attend(layer, q_THE, k_TKE, v_TKE)
        sizes = [window.num_rows for window in self._occupied]
        parts = zip(self._occupied, *(torch.split(part, sizes) for part in (q_THE, k_TKE, v_TKE)), strict=True)
        return torch.cat([window.attend(layer, *part) for window, *part in parts])

    def advance(self) -> None:
        for window in self._occupied:
            window.advance()

    def flush(self, ends: Mapping[int, int], rows: Sequence[LiveSequence]) -> None:
        for band, window in enumerate(self._bands):
            of_band = {row: self._places[row][1] for row in ends if self._places[row][0] == band}
            if of_band:
                window.flush([(place, rows[row], ends[row]) for row, place in of_band.items()])


def _band_of(num_tokens: int) -> int:
    return next((band for band, longest in enumerate(LONGEST) if num_tokens <= longest), len(LONGEST))
