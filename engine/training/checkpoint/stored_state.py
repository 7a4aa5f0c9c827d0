"""Reads ranges of values from a checkpoint's files, and only these, so that any number of ranks with any sharding can
resume from any other.

Invariant: a value that is in no file, and a tensor whose shape differs from the model's, raise ValueError.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch
from safetensors import safe_open
from torch import Tensor

from engine.process.progress import working
from engine.training.checkpoint.shares import Piece, Share, read_name
from engine.training.parts.layout import Place

# 16 MB of float32: read between two progress reports.
_BLOCK_NUMEL: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class _Stored:
    span: range
    total: int
    key: str
    shape: tuple[int, ...]
    file: Any

    def read(self, span: range) -> Tensor:
        """The values of `span`, a part of the stored span, flat."""
        part = self.file.get_slice(self.key)
        start, stop = span.start - self.span.start, span.stop - self.span.start
        width = torch.Size(self.shape[1:]).numel()
        rows = range(start // width, -(-stop // width))
        values: Tensor = part[rows.start : rows.stop].reshape(-1)
        return values[start - rows.start * width : stop - rows.start * width]


class StoredState:
    def __init__(self, files: Iterable[Path]) -> None:
        self._files = list(files)
        self._open = ExitStack()
        self._stored: defaultdict[str, list[_Stored]] = defaultdict(list)

    def __enter__(self) -> Self:
        for file in self._files:
            opened = self._open.enter_context(safe_open(file, framework="pt"))
            for key in opened.keys():  # noqa: SIM118 - not a mapping
                shape = tuple(opened.get_slice(key).get_shape())
                name, span, total = read_name(key)
                numel = torch.Size(shape).numel()
                self._stored[name].append(_Stored(span or range(numel), total or numel, key, shape, opened))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def tensors(self, under: str) -> dict[str, Tensor]:
        """The tensors that are stored whole under a prefix, by name."""
        return {
            name: each.file.get_tensor(each.key)
            for name, (each, *_) in self._stored.items()
            if name.startswith(under) and name == each.key
        }

    @torch.no_grad()
    def fill(self, share: Share, *, under: str) -> None:
        """`under`: the prefix of the names in these files."""
        for piece in share.pieces:
            for span, values in self._read_blocks(piece, under + piece.name):
                first = piece.first + span.start - piece.span.start
                share.values[first : first + len(span)].copy_(values)

    def whole(self, place: Place, *, under: str) -> Tensor:
        share = Share.whole(place, torch.empty(place.shape))
        self.fill(share, under=under)
        return share.values.view(place.shape)

    def _read_blocks(self, piece: Piece, name: str) -> Iterator[tuple[range, Tensor]]:
        stored, at, total = self._stored.get(name, []), piece.span.start, piece.shape.numel()
        for each in sorted(stored, key=lambda each: each.span.start):
            if each.total != total or (each.key == name and each.shape != tuple(piece.shape)):
                raise ValueError(
                    f"{self._folder}: {each.key} has {each.total} values, config.json requires {tuple(piece.shape)}"
                )
            while each.span.start <= at < min(each.span.stop, piece.span.stop):
                span = range(at, min(at + _BLOCK_NUMEL, each.span.stop, piece.span.stop))
                with working("load"):
                    yield span, each.read(span)
                at = span.stop
        if at < piece.span.stop:
            raise ValueError(f"{self._folder}: no file has the values {at} to {piece.span.stop} of {name}")

    @property
    def _folder(self) -> Path:
        return self._files[0].parent
