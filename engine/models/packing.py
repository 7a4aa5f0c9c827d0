"""Lay sequences of many lengths into one row of tokens, as rectangles of like length one after the other.

    lengths 3 3 4 9   →   [ a a a · | b b b · | c c c c ] [ d d d d d d d d d ]
                            one rectangle, 3 rows of 4      one of 1 row of 9

Linear layers see one row of tokens; attention sees each rectangle as a plain batch. Padding is on the right, where
causal attention never looks, so nothing needs a mask.

Invariants:
- every sequence is in exactly one rectangle; the shortest come first;
- a rectangle holds at most `max_tokens` tokens, unless a single sequence is longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# One more rectangle costs about as much time as this many tokens of padding (measured on one CPU core, and a GPU's
# launches make rectangles dearer still, so this errs on the side of little padding).
PADDING_PER_RECTANGLE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    members: tuple[int, ...]
    """Which sequence is in which row, by its index in the lengths given."""
    width: int

    @property
    def num_tokens(self) -> int:
        return len(self.members) * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """T: tokens of all rectangles, padding included."""

    ids_T: Tensor
    positions_T: Tensor
    rectangles: tuple[Rectangle, ...]
    starts: dict[int, int]
    """Where in T each member's first token is."""


def lay_out(lengths: Sequence[int], *, max_tokens: int, only: Sequence[int] | None = None) -> list[Rectangle]:
    """Of all sequences, or only of those in `only`."""
    order = sorted(range(len(lengths)) if only is None else only, key=lengths.__getitem__)
    rectangles: list[Rectangle] = []
    members: list[int] = []
    width = 0
    for index in order:
        wider = lengths[index]
        too_much_padding = len(members) * (wider - width) > PADDING_PER_RECTANGLE
        too_large = (len(members) + 1) * wider > max_tokens
        if members and (too_much_padding or too_large):
            rectangles.append(Rectangle(members=tuple(members), width=width))
            members = []
        members.append(index)
        width = wider
    if members:
        rectangles.append(Rectangle(members=tuple(members), width=width))
    return rectangles


def split_by_tokens(rectangles: Sequence[Rectangle], *, max_tokens: int) -> list[list[Rectangle]]:
    """Micro-batches of at most `max_tokens` tokens each, unless one rectangle is larger."""
    batches: list[list[Rectangle]] = []
    room = 0
    for rectangle in rectangles:
        if not batches or rectangle.num_tokens > room:
            batches.append([])
            room = max_tokens
        batches[-1].append(rectangle)
        room -= rectangle.num_tokens
    return batches


def padding_fraction(lengths: Sequence[int], rectangles: Sequence[Rectangle]) -> float:
    num_tokens = sum(rectangle.num_tokens for rectangle in rectangles)
    num_real = sum(lengths[member] for rectangle in rectangles for member in rectangle.members)
    return 1.0 - num_real / num_tokens if num_tokens else 0.0


def pack(
    sequences: Sequence[Sequence[int]], rectangles: Sequence[Rectangle], device: torch.device | str
) -> PackedTokens:
    """`rectangles` may name only some of the sequences."""
    ids: list[int] = []
    positions: list[int] = []
    starts: dict[int, int] = {}
    for rectangle in rectangles:
        columns = range(rectangle.width)
        for member in rectangle.members:
            sequence = sequences[member]
            starts[member] = len(ids)
            ids += sequence
            ids += [0] * (rectangle.width - len(sequence))
            positions += columns
    return PackedTokens(
        ids_T=torch.tensor(ids, device=device),
        positions_T=torch.tensor(positions, device=device),
        rectangles=tuple(rectangles),
        starts=starts,
    )
