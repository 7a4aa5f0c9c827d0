"""How often a team may submit: exact, also for concurrent requests."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from backend.accounts.models import Project, User
from backend.api.limits.counters import Use, take_in_turn
from backend.api.limits.rate_limit import Rate, RateExceeded, take, take_sent
from backend.clock import database_now
from backend.jobs.models import Job
from backend.pools.models import ResourcePool
from tests.racing import race

SLOW = Rate(name="test", limit=5, window_s=3_600)


def test_the_limit_passes_and_one_more_does_not(db: None) -> None:
    assert [take(SLOW, of="a").remaining for _ in range(5)] == [4, 3, 2, 1, 0]
    with pytest.raises(RateExceeded) as refused:
        take(SLOW, of="a")
    assert 0 < int(refused.value.headers["Retry-After"]) <= 720
    assert take(SLOW, of="b").remaining == 4, "each key has its own bucket"


def test_what_is_taken_comes_back_with_time(db: None) -> None:
    for _ in range(5):
        take(SLOW, of="a")
    with connection.cursor() as db_cursor:
        db_cursor.execute("UPDATE api_ratebucket SET full_at = full_at - interval '25 minutes'")
    assert [take(SLOW, of="a").remaining for _ in range(2)] == [1, 0]


def test_submit_returns_rate_limit_and_retry_after(
    api: Any, api_of: Any, bob: User, project: Project, pool: ResourcePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.jobs.rest.new_job.SUBMITS", Rate(name="submit", limit=2, window_s=3_600))
    body = {"project": project.pk, "spec": {"name": "Sums"}}
    responses = [api.post("/jobs", body) for _ in range(3)]
    assert [response.status_code for response in responses] == [202, 202, 429]
    assert [response["RateLimit"].split(";")[1] for response in responses] == ["r=1", "r=0", "r=0"]
    assert responses[0]["RateLimit-Policy"] == '"submit";q=2;w=3600'
    assert int(responses[2]["Retry-After"]) > 0 and responses[2].json()["retryable"] is True
    assert Job.objects.count() == 2
    assert api_of(bob).post("/jobs", body).status_code == 429, "another key of the team shares the limit"


def test_multiple_uses_move_a_bucket_as_often(db: None) -> None:
    five, seven = Use("bytes", "a", 10, 3_600, num=5), Use("bytes", "a", 10, 3_600, num=7)
    assert [take_in_turn([use])[0].remaining for use in (five, five)] == [5, 0]
    refused = take_in_turn([seven])[0]
    assert not refused.allowed and 2_500 < refused.wait_s <= 2_520
    whole = Use("bytes", "b", 10, 3_600, num=11)
    assert [take_in_turn([whole])[0].allowed for _ in range(2)] == [True, False], (
        "more than the limit takes the whole window"
    )


def test_sent_bytes_are_limited_per_team_and_day(
    api: Any, api_of: Any, alice: User, bob: User, project: Project, pool: ResourcePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.api.limits.rate_limit.SENT", Rate(name="sent-kib", limit=100, window_s=86_400))
    large = {"project": project.pk, "spec": {"name": "Sums", "description": "x" * 60_000}}
    assert api.post("/jobs", large).status_code != 429
    refused = api_of(bob).post("/jobs", large)
    assert refused.status_code == 429 and refused["RateLimit-Policy"] == '"sent-kib";q=100;w=86400'
    assert Job.objects.filter(created_by=bob).count() == 0
    assert api_of(bob).get("/jobs").status_code == 200, "reads send no bytes"
    with pytest.raises(RateExceeded):
        take_sent(50_000, of=project.team_id)


def test_bucket_after_a_refusing_one_stays_unchanged(db: None) -> None:
    wide, narrow = Use("wide", "a", 3, 3_600), Use("narrow", "a", 2, 3_600)
    for _ in range(2):
        assert [one.allowed for one in take_in_turn([wide, narrow])] == [True, True]
    assert [one.allowed for one in take_in_turn([wide, narrow])] == [True, False], "the first bucket was taken from"
    refused = take_in_turn([wide, narrow])
    assert [(one.bucket, one.allowed) for one in refused] == [("wide", False)]
    assert 0 < refused[0].wait_s <= 1_200


def test_the_clock_of_an_allowance_is_the_databases(db: None) -> None:
    before = database_now()
    assert before <= take_in_turn([Use("wide", "a", 3, 3_600)])[0].at <= database_now()


@pytest.mark.django_db(transaction=True)
def test_racing_for_two_buckets_passes_exactly_the_narrower(in_own_connection: Callable[..., Any]) -> None:
    uses = [Use("wide", "raced", 40, 3_600), Use("narrow", "raced", 10, 3_600)]

    def take_four() -> int:
        return sum(take_in_turn(uses)[-1].allowed for _ in range(4))

    assert sum(race(*[in_own_connection(take_four)] * 16)) == 10


@pytest.mark.django_db(transaction=True)
def test_sixteen_at_once_pass_exactly_the_limit(in_own_connection: Callable[..., Any]) -> None:
    def passes() -> bool:
        try:
            take(SLOW, of="raced")
        except RateExceeded:
            return False
        return True

    def count_passes() -> int:
        return sum(passes() for _ in range(4))

    assert sum(race(*[in_own_connection(count_passes)] * 16)) == SLOW.limit
