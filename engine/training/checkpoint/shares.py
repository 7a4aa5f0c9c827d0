"""Shares: the values that one rank holds of a parameter, by public names.

    a parameter, flat   ┌ q_proj ─────┬ k_proj ──┬ v_proj ──┐
    rank 1 of 2                    └──── its span ──────────┘   = q_proj[896:1024/1024], k_proj, v_proj

A tensor that a rank holds whole is stored under its own name, in its own shape. For a sharded tensor, each rank stores
its values under `NAME[START:STOP/TOTAL]`, flat: values, not rows, since DeepSpeed shards in the middle of a row.

Invariants:
- the shares of all ranks cover the whole parameter without overlap;
- a share is a view, not a copy: training changes it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.training.parts.layout import Place, rows_of
from engine.training.parts.trained import MOMENTS, TrainedPart

KINDS: Final = ("master", *MOMENTS)

_DIVIDED: Final = re.compile(r"(.+)\[(\d+):(\d+)/(\d+)\]")


@dataclass(frozen=True, slots=True)
class Piece:
    """Values of a public tensor that are contiguous in a parameter."""

    name: str
    shape: torch.Size
    """The public tensor's."""
    span: range
    """The values, counted in the public tensor."""
    first: int
    """Their start, counted from the start of the share."""

    @property
    def stored_name(self) -> str:
        total = self.shape.numel()
        return self.name if len(self.span) == total else f"{self.name}[{self.span.start}:{self.span.stop}/{total}]"

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return tuple(self.shape) if len(self.span) == self.shape.numel() else (len(self.span),)


def pieces_of(place: Place, span: range) -> Iterator[Piece]:
    for name, shape, offset in place.parts:
        start, stop = max(span.start, offset), min(span.stop, offset + shape.numel())
        if start < stop:
            yield Piece(name, shape, range(start - offset, stop - offset), start - span.start)


def read_name(stored_name: str) -> tuple[str, range | None, int]:
    """Returns the tensor's name, the range of stored values (None: all), and the total number of values."""
    match = _DIVIDED.fullmatch(stored_name)
    if match is None:
        return stored_name, None, 0
    name, start, stop, total = match.groups()
    return name, range(int(start), int(stop)), int(total)


@dataclass(frozen=True, slots=True)
class Share:
    place: Place
    span: range
    """The range in the parameter's flat values."""
    values: Tensor
    """The values of the span, flat."""

    @classmethod
    def whole(cls, place: Place, values: Tensor) -> "Share":
        return cls(place, range(place.shape.numel()), values.detach().view(-1))

    @property
    def pieces(self) -> Iterator[Piece]:
        return pieces_of(self.place, self.span)

    def part(self, index: int, count: int) -> "Share":
        """One of `count` consecutive parts of the share; the last ones may be shorter or empty."""
        own = rows_of(index, count, len(self.span))
        return Share(self.place, self.span[own.start : own.stop], self.values[own.start : own.stop])


def files_with(part: "PartShares", stored: Mapping[str, Iterable[str]]) -> list[str]:
    """The files that hold values of these shares, given each file's tensor names."""
    wanted: defaultdict[str, list[range]] = defaultdict(list)
    for kind, shares in part.kinds.items():
        for share in shares.values():
            for piece in share.pieces:
                wanted[part.part.stored_under(kind) + piece.name].append(piece.span)

    def is_wanted(stored_name: str) -> bool:
        name, span, _ = read_name(stored_name)
        return any(span is None or _overlap(span, each) for each in wanted.get(name, ()))

    return [file for file, names in stored.items() if any(map(is_wanted, names))]


def _overlap(first: range, second: range) -> bool:
    return max(first.start, second.start) < min(first.stop, second.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShares:
    """A rank's shares of a trained part and of its moments."""

    part: TrainedPart
    kinds: Mapping[str, Mapping[str, Share]]
    """By kind (KINDS), then by parameter."""
