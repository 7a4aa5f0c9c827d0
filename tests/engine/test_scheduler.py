"""Rows: dense, first come first served, nobody twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.scheduler import LiveSequence, Scheduler


def live(name: str) -> LiveSequence:
    sampling = SamplingParams(max_new_tokens=4, temperature=1.0, seed=0)
    request = SequenceRequest(sequence_id=name, prompt_ids=(1, 2), sampling=sampling)
    return LiveSequence(request=request, max_new_tokens=4)


def names(scheduler: Scheduler) -> list[str]:
    return [each.request.sequence_id for each in scheduler.rows]


def test_waiting_sequences_start_in_order_as_rows_become_free() -> None:
    scheduler = Scheduler(2)
    scheduler.submit([live(name) for name in "abc"])
    assert scheduler.admit() == range(0, 2)
    assert names(scheduler) == ["a", "b"]
    assert scheduler.admit() == range(2, 2)
    scheduler.retire([0])
    assert scheduler.admit() == range(1, 2)
    assert names(scheduler) == ["b", "c"]


@given(st.integers(1, 12), st.data())
def test_the_moves_that_close_gaps_carry_every_survivor_to_its_row(num_rows: int, data: st.DataObject) -> None:
    scheduler = Scheduler(num_rows)
    scheduler.submit([live(str(i)) for i in range(num_rows)])
    scheduler.admit()
    cache = names(scheduler)  # what a cache's rows hold
    ended = data.draw(st.sets(st.integers(0, num_rows - 1)))
    for move in scheduler.retire(ended):
        cache[move.target] = cache[move.source]
    assert names(scheduler) == cache[: num_rows - len(ended)]
    assert set(names(scheduler)) == {str(i) for i in range(num_rows)} - {str(i) for i in ended}


def test_refuses_an_id_in_flight_and_takes_none_of_that_call() -> None:
    scheduler = Scheduler(2)
    scheduler.submit([live("a")])
    for ids in (["b", "a"], ["c", "c"]):
        with pytest.raises(ValueError, match="sequence_id"):
            scheduler.submit([live(name) for name in ids])
    assert len(scheduler.waiting) == 1
    scheduler.admit()
    scheduler.retire([0])
    scheduler.submit([live("a")])  # free again once it has ended


def test_withdraws_only_from_the_waiting_line() -> None:
    scheduler = Scheduler(1)
    scheduler.submit([live(name) for name in "abc"])
    scheduler.admit()
    assert [each.request.sequence_id for each in scheduler.withdraw({"a", "c"})] == ["c"]
    assert [each.request.sequence_id for each in scheduler.waiting] == ["b"]
