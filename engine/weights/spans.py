"""Parts of a version in one contiguous memory, on a host that has only these parts. No torch.

    version   ░░████░░░░██████░░██      spans: the present parts
                │        │      │
    memory     ████   ██████   ██       without the gaps; if the spans are everything, the version itself

Invariant: spans ascend and do not touch, so equal sets of bytes are equal spans.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

Span = tuple[int, int]
"""The first byte, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Spans:
    of_version: tuple[Span, ...]
    places: tuple[int, ...]
    """Offset of each span in the memory; the last entry is the total number of bytes."""

    @classmethod
    def joined(cls, some: Iterable[Span]) -> Self:
        """From spans in any order, without overlaps."""
        joined: list[Span] = []
        for start, end in sorted(some):
            if joined and start < joined[-1][1]:
                raise ValueError(f"bytes {start} to {end} overlap the span before them, which ends at {joined[-1][1]}")
            if joined and start == joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
            elif start < end:
                joined.append((start, end))
        return cls(tuple(joined), tuple(accumulate((end - start for start, end in joined), initial=0)))

    @property
    def num_bytes(self) -> int:
        return self.places[-1]

    def is_all_of(self, num_bytes: int) -> bool:
        return self.of_version == (((0, num_bytes),) if num_bytes else ())

    def place_of(self, start: int) -> int:
        """The offset in the memory of a byte of the version, which must be in a span."""
        at = bisect_right(self.of_version, start, key=lambda span: span[0]) - 1
        assert at >= 0 and start < self.of_version[at][1], f"byte {start} is in no span"
        return self.places[at] + start - self.of_version[at][0]

    def scattered(self, begin: int, end: int) -> Iterator[Span]:
        """The bytes of the version that are at `begin` … `end` of the memory."""
        at = bisect_right(self.places, begin) - 1
        while begin < end:
            start, stop = self.of_version[at]
            first = start + begin - self.places[at]
            last = min(stop, first + end - begin)
            yield first, last
            begin, at = begin + last - first, at + 1
