"""A request is retried only if that is safe."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.client.laminar_client.errors import ApiError, LimitReached, NotFound, ServerFault, Unreachable
from frontend.client.laminar_client.retrying import Patience
from frontend.client.laminar_client.wire import Lost, get, patch, post, sent
from tests.frontend.client.scripted_wire import ScriptedWire, problem, reply


@pytest.mark.parametrize("failure", [Lost("gone"), problem(503), problem(502), problem(429)])
def test_a_read_is_repeated_until_it_is_answered(failure: object) -> None:
    scripted = ScriptedWire([failure, failure, reply(200, b"1")])  # type: ignore[list-item]
    assert scripted.run(sent(get("me"))).body == b"1"
    assert len(scripted.requests) == 3


def test_post_without_key_is_not_retried_after_lost_response() -> None:
    scripted = ScriptedWire([Lost("gone"), reply()])
    with pytest.raises(Unreachable):
        scripted.run(sent(post("projects", body={"name": "a"})))
    assert len(scripted.requests) == 1


def test_a_change_is_not_repeated_on_a_fault_of_the_server() -> None:
    scripted = ScriptedWire([problem(503), reply()])
    with pytest.raises(ServerFault):
        scripted.run(sent(patch("jobs", "job_1", body={"name": "a"})))
    assert len(scripted.requests) == 1


def test_post_without_key_is_retried_after_429() -> None:
    scripted = ScriptedWire([problem(429, retry_after="1"), reply()])
    scripted.run(sent(post("projects", body={"name": "a"})))
    assert len(scripted.requests) == 2


def test_every_repetition_carries_the_same_idempotency_key() -> None:
    scripted = ScriptedWire([Lost("gone"), problem(409, "in_flight", retry_after="1"), problem(503), reply()])
    scripted.run(sent(post("jobs", body={}, idempotency_key="mine")))
    assert [request.headers["Idempotency-Key"] for request in scripted.requests] == ["mine"] * 4


def test_a_refusal_that_lasts_is_told_at_once() -> None:
    scripted = ScriptedWire([problem(404, "not_found")])
    with pytest.raises(NotFound):
        scripted.run(sent(get("jobs", "job_1")))
    assert scripted.pauses == []


def test_retry_after_is_never_shortened() -> None:
    scripted = ScriptedWire([problem(429, retry_after="7"), problem(503, retry_after="3"), reply()])
    scripted.run(sent(get("me")))
    assert scripted.pauses[0] >= 7
    assert scripted.pauses[1] >= 3


def test_a_retry_after_beyond_the_patience_ends_the_tries() -> None:
    scripted = ScriptedWire([problem(429, retry_after="3600")])
    with pytest.raises(LimitReached) as refused:
        scripted.run(sent(get("me")))
    assert refused.value.retry_after_s == 3600
    assert scripted.pauses == []


def test_patience_ends_after_so_many_tries() -> None:
    scripted = ScriptedWire([Lost("gone")] * 9, patience=Patience(tries=4))
    with pytest.raises(Unreachable, match="gone"):
        scripted.run(sent(get("me")))
    assert len(scripted.requests) == 4


@given(seed=st.integers(), tried=st.integers(1, 5), told=st.none() | st.integers(0, 60))
def test_pauses_grow_stay_bounded_and_are_spread(seed: int, tried: int, told: int | None) -> None:
    patience = Patience(rng=random.Random(seed))
    error = ApiError(503, {}, retry_after_s=told)
    pause = patience.pause_s(tried, error)
    assert pause is not None
    most = min(patience.longest_pause_s, patience.first_pause_s * 2 ** (tried - 1))
    assert (told or 0) + most / 2 <= pause <= (told or 0) + most
