"""Packing: sequences of many lengths in one row of tokens, and for attention in rectangles of similar length.

    p p p a a    p p p b    q q c c c        three sequences; the first two share a prefix

    p p p a a b q q c c c                    T: input of linear layers: each shared prefix once, no padding

    [ p p p b · ]  [ p p p a a ]             F: input of attention: whole sequences in rectangles of rows, each a
                   [ q q c c c ]                plain batch

Padding is on the right, which causal attention does not see, so no mask is needed.

Invariants:
- every sequence is in exactly one rectangle; the shortest come first;
- a rectangle holds at most `max_tokens` tokens, unless a single sequence is longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

# One more rectangle costs about as much time as this many tokens of padding (measured on one CPU core; on a GPU
# rectangles cost more, so this errs on the side of little padding).
PADDING_PER_RECTANGLE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    members: tuple[int, ...]
    """The sequence in each row, as an index into the given lengths."""
    width: int

    @property
    def num_tokens(self) -> int:
        return len(self.members) * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """T: tokens of all sequences, each shared prefix once    F: places of all rectangles, padding included"""

    ids_T: Tensor
    positions_T: Tensor
    rectangles: tuple[Rectangle, ...]
    spread_F: Tensor | None
    """The index in T for each place of F; None: T and F are the same."""
    gather_T: Tensor | None
    """The place in F of each token of T; for a shared prefix, in one of its rows."""
    starts: Tensor | None
    """The places in F where sequences begin, and where the last one ends; None: there is padding."""
    places: dict[int, Ints]
    """The places in T of each sequence's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceArrays:
    """Sequences in one array of tokens: each has a prefix, which others may share, and a rest of its own.

    N sequences"""

    ids: NDArray[np.int32]
    beginning_starts_N: Ints
    """The same place for sequences that share a prefix."""
    beginning_lengths_N: Ints
    rest_starts_N: Ints
    rest_lengths_N: Ints

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], shareable: Sequence[int]) -> "SequenceArrays":
        ids: list[int] = []
        starts: dict[tuple[int, ...], int] = {}
        rows: list[tuple[int, int, int, int]] = []
        for sequence, num_shareable in zip(sequences, shareable, strict=True):
            beginning = tuple(sequence[:num_shareable])
            start = starts.setdefault(beginning, len(ids))
            ids += beginning if start == len(ids) else ()
            rows.append((start, len(beginning), len(ids), len(sequence) - len(beginning)))
            ids += sequence[len(beginning) :]
        starts_N, lengths_N, rests_N, rest_lengths_N = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        return cls(
            ids=np.array(ids, dtype=np.int32),
            beginning_starts_N=starts_N,
            beginning_lengths_N=lengths_N,
            rest_starts_N=rests_N,
            rest_lengths_N=rest_lengths_N,
        )


def lay_out(
    lengths: Sequence[int],
    *,
    max_tokens: int,
    only: Sequence[int] | None = None,
    padding: int = PADDING_PER_RECTANGLE,
) -> list[Rectangle]:
    """Rectangles of all sequences, or only of those in `only`. `padding`: the limit for each rectangle."""
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
    """`rectangles` may cover only some of the sequences. `shareable`: the length of each sequence's prefix that others
    may share."""
    return pack_arrays(SequenceArrays.of(sequences, shareable or [0] * len(sequences)), rectangles, device)


def pack_arrays(sequences: SequenceArrays, rectangles: Sequence[Rectangle], device: torch.device | str) -> PackedTokens:
    """S sequences in the order of the rectangles' rows    P tokens of all sequences, one after the other"""
    members_S = np.array([member for each in rectangles for member in each.members], dtype=np.int64)
    widths_S = np.array([each.width for each in rectangles for _ in each.members], dtype=np.int64)
    beginnings_S = sequences.beginning_lengths_N[members_S]
    rests_S = sequences.rest_lengths_N[members_S]
    kinds_S = np.where(beginnings_S > 0, sequences.beginning_starts_N[members_S], -1)
    _, first_S, kind_S = np.unique(kinds_S, return_index=True, return_inverse=True)
    reader_S = first_S[kind_S]  # the row that holds its prefix's tokens in T
    known_S = np.where(reader_S == np.arange(len(members_S)), 0, beginnings_S)
    own_S, lengths_S = beginnings_S + rests_S - known_S, beginnings_S + rests_S
    row_starts_S, starts_S, wide_starts_S = _find_starts(own_S), _find_starts(lengths_S), _find_starts(widths_S)
    read = ranges(
        _interleave(sequences.beginning_starts_N[members_S], sequences.rest_starts_N[members_S]),
        _interleave(beginnings_S - known_S, rests_S),
    )
    places_P = ranges(
        _interleave(row_starts_S[reader_S], row_starts_S + beginnings_S - known_S), _interleave(beginnings_S, rests_S)
    )
    spread_F = gather_T = None
    is_padded = int(widths_S.sum()) > len(places_P)
    if is_padded or known_S.any():
        first_places_S = np.append(places_P, 0)[np.where(lengths_S > 0, starts_S, len(places_P))]
        spread_F = np.repeat(first_places_S, widths_S)
        spread_F[ranges(wide_starts_S, lengths_S)] = places_P
        gather_T = ranges(wide_starts_S + known_S, own_S)

    def on_device(array: Ints) -> Tensor:
        return torch.from_numpy(array).to(device)

    return PackedTokens(
        ids_T=on_device(sequences.ids[read].astype(np.int64)),
        positions_T=on_device(ranges(known_S, own_S)),
        rectangles=tuple(rectangles),
        spread_F=None if spread_F is None else on_device(spread_F),
        gather_T=None if gather_T is None else on_device(gather_T),
        starts=None if is_padded else on_device(np.append(wide_starts_S, widths_S.sum()).astype(np.int32)),
        places={
            int(member): places_P[start : start + length]
            for member, start, length in zip(members_S, starts_S, lengths_S, strict=True)
        },
    )


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """The numbers of all ranges, concatenated."""
    return np.repeat(starts - _find_starts(lengths), lengths) + np.arange(lengths.sum())


def _find_starts(lengths: Ints) -> Ints:
    """The starts of adjacent parts with these lengths."""
    return lengths.cumsum() - lengths


def _interleave(one: Ints, other: Ints) -> Ints:
    return np.stack([one, other], axis=1).ravel()
