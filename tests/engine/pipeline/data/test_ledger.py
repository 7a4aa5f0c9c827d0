"""The ledger: a set of ordinals, never a counter."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.pipeline.data.ledger import IntervalSet, Ledger
from engine.pipeline.records import DataProgress


@given(st.lists(st.integers(0, 60), unique=True))
def test_an_interval_set_is_a_set(numbers: list[int]) -> None:
    interval_set = IntervalSet()
    for number in numbers:
        interval_set.add(number)
    assert list(interval_set) == sorted(numbers)
    assert all((number in interval_set) == (number in numbers) for number in range(62))
    intervals = interval_set.intervals()
    assert all(start < stop for start, stop in intervals)
    assert all(left[1] < right[0] for left, right in pairwise(intervals))
    assert list(IntervalSet(intervals)) == sorted(numbers)
    for at_least in range(62):
        assert interval_set.first_absent(at_least) == next(n for n in range(at_least, 200) if n not in numbers)


def test_a_prompt_ends_once() -> None:
    ledger = Ledger(DataProgress())
    ledger.end(3, "trained", num_samples=8)
    with pytest.raises(ValueError, match="3 is in the set already"):
        ledger.end(3, "dropped_stale", num_samples=8)


def test_a_resumed_ledger_skips_what_ended_and_keeps_its_counts() -> None:
    before = Ledger(DataProgress())
    before.end(0, "failed", num_samples=8)
    progress = before.progress_if_trained([2, 1], num_samples=16)
    assert progress.ended == ((0, 3),)
    after = Ledger(progress)
    assert after.first_open(0) == 3
    assert after.counts(num_open=5) == {"trained": 16, "filtered": 0, "dropped_stale": 0, "failed": 8, "open": 5}
    assert before.counts(num_open=0)["trained"] == 0, "a progress that is looked ahead must not change the ledger"


@given(st.sets(st.integers(0, 30)), st.data())
def test_interval_set_loses_removed_numbers(numbers: set[int], data: st.DataObject) -> None:
    interval_set = IntervalSet()
    for number in numbers:
        interval_set.add(number)
    taken = data.draw(st.sets(st.sampled_from(sorted(numbers)))) if numbers else set()
    for number in taken:
        interval_set.remove(number)
    assert list(interval_set) == sorted(numbers - taken)
    with pytest.raises(ValueError, match="40 is not in the set"):
        interval_set.remove(40)


def test_an_end_that_is_taken_back_is_counted() -> None:
    ledger = Ledger(DataProgress())
    ledger.end(0, "trained", num_samples=8)
    ledger.take_back(0, num_samples=8)
    assert not ledger.has_ended(0)
    assert ledger.counts(num_open=8) == {
        "trained": 0, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 8, "rolled_back": 8,
    }  # fmt: skip
