"""Packing: sequences of many lengths laid into one row of tokens, and for attention into rectangles of like length.

    p p p a a    p p p b    q q c c c        three sequences; the first two begin alike

    p p p a a b q q c c c                    T: what linear layers see: each beginning once, no padding

    [ p p p b · ]  [ p p p a a ]             F: what attention sees: whole sequences in rectangles of rows, each a
                   [ q q c c c ]                plain batch

Padding is on the right, where causal attention never looks, so nothing needs a mask.

Invariants:
- every sequence is in exactly one rectangle; the shortest come first;
- a rectangle holds at most `max_tokens` tokens, unless a single sequence is longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

# One more rectangle costs about as much time as this many tokens of padding (measured on one CPU core, and a GPU's
# launches make rectangles costlier still, so this errs on the side of little padding).
PADDING_PER_RECTANGLE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    members: tuple[int, ...]
    """The sequence in each row, by its index in the lengths given."""
    width: int

    @property
    def num_tokens(self) -> int:
        return len(self.members) * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """T: tokens of all sequences, a shared beginning once    F: places of all rectangles, padding included"""

    ids_T: Tensor
    positions_T: Tensor
    rectangles: tuple[Rectangle, ...]
    spread_F: Tensor | None
    """The index in T for each place of F; None: they are the same."""
    gather_T: Tensor | None
    """The place in F of each of T; of a shared beginning, in one of its rows."""
    starts: Tensor | None
    """The places in F where sequences begin, and where the last one ends; None: there is padding."""
    places: dict[int, Sequence[int]]
    """The places in T of each member's tokens."""


def lay_out(
    lengths: Sequence[int],
    *,
    max_tokens: int,
    only: Sequence[int] | None = None,
    padding: int = PADDING_PER_RECTANGLE,
) -> list[Rectangle]:
    """Of all sequences, or only of those in `only`. `padding`: at most, in each rectangle."""
    order = sorted(range(len(lengths)) if only is None else only, key=lengths.__getitem__)
    rectangles: list[Rectangle] = []
    members: list[int] = []
    width = 0
    for index in order:
        wider = lengths[index]
        too_much_padding = len(members) * (wider - width) > padding
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
    sequences: Sequence[Sequence[int]],
    rectangles: Sequence[Rectangle],
    device: torch.device | str,
    *,
    shareable: Sequence[int] | None = None,
) -> PackedTokens:
    """`rectangles` may name only some of the sequences. `shareable`: how many of each sequence's first tokens others
    may begin with too."""
    row = _Row()
    spread: list[int] = []
    gather: list[int] = []
    for rectangle in rectangles:
        for member in rectangle.members:
            sequence = sequences[member]
            num_known = row.add(member, sequence, num_shareable=0 if shareable is None else shareable[member])
            gather += range(len(spread) + num_known, len(spread) + len(sequence))
            places = row.places[member]
            spread += places
            spread += [places[0] if places else 0] * (rectangle.width - len(sequence))
    widths = [rectangle.width for rectangle in rectangles for _ in rectangle.members]
    is_padded = len(spread) > sum(len(sequences[member]) for each in rectangles for member in each.members)
    is_same = spread == list(range(len(row.ids)))
    return PackedTokens(
        ids_T=torch.tensor(row.ids, device=device),
        positions_T=torch.tensor(row.positions, device=device),
        rectangles=tuple(rectangles),
        spread_F=None if is_same else torch.tensor(spread, device=device),
        gather_T=None if is_same else torch.tensor(gather, device=device),
        starts=None if is_padded else torch.tensor([0, *accumulate(widths)], dtype=torch.int32, device=device),
        places=row.places,
    )


class _Row:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.places: dict[int, Sequence[int]] = {}
        self._beginnings: dict[tuple[int, ...], range] = {}

    def add(self, member: int, sequence: Sequence[int], *, num_shareable: int) -> int:
        """The number of its tokens that are here already."""
        beginning = tuple(sequence[:num_shareable])
        known = self._beginnings.get(beginning, range(0))
        start = len(self.ids)
        self.ids += sequence[len(known) :]
        self.positions += range(len(known), len(sequence))
        own = range(start, len(self.ids))
        self.places[member] = (*known, *own) if known else own
        if beginning and not known:
            self._beginnings[beginning] = own[:num_shareable]
        return len(known)
