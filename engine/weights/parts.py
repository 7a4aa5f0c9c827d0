"""Parts of the published tensors, held by the workers of one replica: their sums are compared with the trainer's.

    worker 0   rows 0 … 31 of q_proj, all of a norm   ──sums──┐
    worker 1   rows 32 … 63 of q_proj, all of a norm  ──sums──┴─▶ each tensor once, with one sum: the trainer's

Invariants:
- equal rectangles of a tensor (replicated norms, heads of keys) have equal sums, or the tensor differs;
- different rectangles tile the tensor, or it differs: a shard that two workers hold in place of two is found;
- a tensor that a worker stores in another format (quantised) is not compared.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import NamedTuple

from engine.weights.port import WeightManifest
from engine.weights.sums import added, check_sums


class Rectangle(NamedTuple):
    """Of a tensor; one of a single dimension is one row."""

    row: int
    column: int
    num_rows: int
    num_columns: int

    @property
    def num_elements(self) -> int:
        return self.num_rows * self.num_columns

    @property
    def last_row(self) -> int:
        return self.row + self.num_rows - 1

    @property
    def last_column(self) -> int:
        return self.column + self.num_columns - 1

    def is_within(self, other: "Rectangle") -> bool:
        return (
            other.row <= self.row <= self.last_row <= other.last_row
            and other.column <= self.column <= self.last_column <= other.last_column
        )

    def overlaps(self, other: "Rectangle") -> bool:
        return max(self.row, other.row) <= min(self.last_row, other.last_row) and max(self.column, other.column) <= min(
            self.last_column, other.last_column
        )


class Part(NamedTuple):
    name: str
    """The tensor's published name."""
    place: Rectangle
    sum: int | None
    """None: stored in another format than the published one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParts:
    """The weights of one worker after an install."""

    parts: tuple[Part, ...] = ()
    stale: frozenset[str] = frozenset()
    """Tensors whose packed copy, with which the worker computes, has other values than the part."""
    merged: Mapping[str, int] = field(default_factory=dict)
    """For an adapter: sums of the whole tensors that the worker made of base and adapter."""


def check_held(
    manifest: WeightManifest,
    expected: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    workers: Sequence[HeldParts],
) -> None:
    """`expected`, `shapes`: of the whole tensors. Raises `OtherWeights`, which names those that differ. Those of which
    no worker has a part are not compared."""
    stale = frozenset[str]().union(*(worker.stale for worker in workers))
    stale |= {name for name, each in expected.items() for worker in workers if worker.merged.get(name, each) != each}
    sums: dict[str, dict[Rectangle, set[int | None]]] = {}
    for part in chain.from_iterable(worker.parts for worker in workers):
        sums.setdefault(part.name, {}).setdefault(part.place, set()).add(part.sum)
    foreign = {name for name, of_places in sums.items() if any(None in each for each in of_places.values())}
    held = {name: _sum_of_whole(sums[name], shapes[name]) for name in sums.keys() - foreign}
    held |= dict.fromkeys(stale)
    compared = {name: each for name, each in expected.items() if name in held}
    check_sums(manifest, compared, held, what="the installed weights")


def _sum_of_whole(sums: Mapping[Rectangle, set[int | None]], shape: Sequence[int]) -> int | None:
    """None: equal rectangles differ, or together they are not the tensor."""
    if not tile(sums, shape) or any(len(each) > 1 for each in sums.values()):
        return None
    (whole,) = added((each,) for (each,) in sums.values() if each is not None)
    return whole


def tile(places: Iterable[Rectangle], shape: Sequence[int]) -> bool:
    """True if every element of a tensor of this shape is in exactly one of the rectangles."""
    known, whole = list(places), whole_of(shape)
    return (
        sum(place.num_elements for place in known) == whole.num_elements
        and all(place.is_within(whole) for place in known)
        and not any(one.overlaps(other) for one, other in combinations(known, 2))
    )


def whole_of(shape: Sequence[int]) -> Rectangle:
    return Rectangle(0, 0, *((1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))))
