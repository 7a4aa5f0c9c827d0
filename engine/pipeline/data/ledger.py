"""The ledger: every sample of every prompt has exactly one end; a set of ordinals holds the prompts that have ended.

Invariants:
- an ordinal ends once; ending it again is a bug and stops the run;
- an end is taken back only when the weights trained on it are lost with their trainer, and that is counted;
- the set is kept as intervals, so it stays small although prompts end out of order. A checkpoint stores the set: a
  counter would repeat some prompts after a restart and skip others forever.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Literal

from engine.pipeline.records import DataProgress, Intervals

End = Literal["trained", "filtered", "dropped_stale", "failed"]
ENDS: tuple[End, ...] = ("trained", "filtered", "dropped_stale", "failed")


class IntervalSet:
    """A set of numbers from 0 on, as sorted half-open intervals that neither touch nor overlap."""

    def __init__(self, intervals: Intervals = ()) -> None:
        self._starts = [start for start, _ in intervals]
        self._stops = [stop for _, stop in intervals]

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.intervals():
            yield from range(start, stop)

    def add(self, number: int) -> None:
        if number in self:
            raise ValueError(f"{number} is in the set already")
        at = bisect_right(self._starts, number)
        joins_left = at > 0 and self._stops[at - 1] == number
        joins_right = at < len(self._starts) and self._starts[at] == number + 1
        if joins_left and joins_right:
            self._stops[at - 1] = self._stops[at]
            del self._starts[at], self._stops[at]
        elif joins_left:
            self._stops[at - 1] = number + 1
        elif joins_right:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._stops.insert(at, number + 1)

    def remove(self, number: int) -> None:
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._stops[at]:
            raise ValueError(f"{number} is not in the set")
        start, stop = self._starts[at], self._stops[at]
        rest = [(left, right) for left, right in ((start, number), (number + 1, stop)) if left < right]
        self._starts[at : at + 1] = [left for left, _ in rest]
        self._stops[at : at + 1] = [right for _, right in rest]

    def first_absent(self, at_least: int) -> int:
        """The smallest number from `at_least` on that is not in the set."""
        at = bisect_right(self._starts, at_least) - 1
        return self._stops[at] if at >= 0 and at_least < self._stops[at] else at_least

    def intervals(self) -> Intervals:
        return tuple(zip(self._starts, self._stops, strict=True))


class Ledger:
    def __init__(self, progress: DataProgress, *, num_rolled_back: int = 0) -> None:
        self._ended = IntervalSet(progress.ended)
        self._counts: dict[str, int] = dict.fromkeys(ENDS, 0) | dict(progress.ledger)
        self.num_rolled_back = num_rolled_back
        """Samples that were trained into lost weights."""

    def end(self, ordinal: int, end: End, *, num_samples: int, num_failed: int = 0) -> None:
        """`num_failed`: ungraded samples, counted as failed whatever the group's end."""
        self._ended.add(ordinal)
        self._counts[end] += num_samples - num_failed
        self._counts["failed"] += num_failed

    def take_back(self, ordinal: int, *, num_samples: int, num_failed: int = 0) -> None:
        """Takes back the end of a prompt whose trained weights died with the trainer."""
        self._ended.remove(ordinal)
        self._counts["trained"] -= num_samples - num_failed
        self._counts["failed"] -= num_failed
        self.num_rolled_back += num_samples - num_failed

    def has_ended(self, ordinal: int) -> bool:
        return ordinal in self._ended

    def first_open(self, at_least: int) -> int:
        return self._ended.first_absent(at_least)

    def counts(self, *, num_open: int) -> dict[str, int]:
        rolled_back = {"rolled_back": self.num_rolled_back} if self.num_rolled_back else {}
        return {**self._counts, "open": num_open, **rolled_back}

    def progress(self) -> DataProgress:
        return DataProgress(ended=self._ended.intervals(), ledger=tuple(sorted(self._counts.items())))

    def progress_if_trained(self, ordinals: Sequence[int], *, num_samples: int, num_failed: int = 0) -> DataProgress:
        """The progress for a checkpoint that is written once these prompts are trained."""
        ended = IntervalSet(self._ended.intervals())
        for ordinal in ordinals:
            ended.add(ordinal)
        counts = dict(self._counts)
        counts["trained"] += num_samples - num_failed
        counts["failed"] += num_failed
        return DataProgress(ended=ended.intervals(), ledger=tuple(sorted(counts.items())))
