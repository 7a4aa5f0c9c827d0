"""Every request of a key is counted, exactly, in the bucket of its kind."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from backend.accounts.models import User
from backend.api.limits import counters
from backend.api.limits.counters import forget_full_buckets
from backend.api.limits.rate_limit import Rate
from backend.api.models import RateBucket
from tests.racing import race


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READS", "WRITES"):
        rate = Rate(name=name.lower().removesuffix("s"), limit=3, window_s=3_600)
        monkeypatch.setattr(f"backend.api.limits.rate_limit.{name}", rate)


def test_reads_are_counted_and_429_has_retry_after(few: None, api: Any, api_of: Any, bob: User) -> None:
    answers = [api.get("/me") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer["RateLimit"].split(";")[1] for answer in answers] == ["r=2", "r=1", "r=0", "r=0"]
    assert answers[0]["RateLimit-Policy"] == '"read";q=3;w=3600'
    problem = answers[3].json()
    assert (problem["code"], problem["retryable"]) == ("too_many_requests", True)
    assert 0 < int(answers[3]["Retry-After"]) <= 1_200
    assert api_of(bob).get("/me").status_code == 200, "another key is not limited"


def test_reads_and_writes_have_buckets_of_their_own(few: None, api: Any, job: Any) -> None:
    for _ in range(3):
        api.get("/me")
    assert api.get("/me").status_code == 429
    assert api.post(f"/jobs/{job.pk}/cancel").status_code in {200, 202}


def test_a_request_that_is_refused_for_its_body_counts_too(few: None, api: Any) -> None:
    answers = [api.post("/jobs", b"{").status_code for _ in range(4)]
    assert answers == [400, 400, 400, 429]


def test_without_a_key_nothing_is_counted(db: None) -> None:
    assert "RateLimit" not in Client().get("/api/v1/me") and not RateBucket.objects.exists()


def test_an_installation_can_widen_every_limit(few: None, api: Any, settings: Any) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, rate_scale=2.0)
    assert [api.get("/me").status_code for _ in range(7)] == [200] * 6 + [429]


def test_what_is_counted_is_never_stored_as_it_was_written(db: None) -> None:
    for key in ("alice@example.org", "nul \0", "' OR 1=1 --", "x" * 10_000, "\ud800"):
        assert counters.take("sign-in", key, 5, 60).remaining == 4
    names = set(RateBucket.objects.values_list("name", flat=True))
    assert f"sign-in:{hashlib.sha256(b'alice@example.org').hexdigest()}" in names and len(names) == 5


def test_hammering_does_not_prolong_the_wait(db: None) -> None:
    waits = [counters.take("test", "a", 2, 3_600) for _ in range(20)]
    assert [one.allowed for one in waits] == [True, True] + [False] * 18
    assert waits[-1].wait_s <= waits[2].wait_s


def test_without_postgres_every_request_is_refused(monkeypatch: pytest.MonkeyPatch, db: None) -> None:
    """Fails closed: a sign-in that cannot be counted is refused."""

    def away(*_: object) -> None:
        raise OperationalError("away")

    with monkeypatch.context() as patch, pytest.raises(OperationalError):
        patch.setattr(connection, "cursor", away)
        counters.take("sign-in", "a", 5, 60)


def test_full_buckets_are_forgotten_and_others_kept(db: None) -> None:
    counters.take("test", "idle", 10, 1)
    counters.take("test", "busy", 1, 7_200)
    assert forget_full_buckets(now=datetime.now(UTC) + timedelta(hours=1)) == 1
    assert RateBucket.objects.get().name == "test:busy"


@pytest.mark.django_db(transaction=True)
def test_sixty_four_at_once_pass_exactly_the_limit(in_own_connection: Callable[..., Any]) -> None:
    def take_four() -> int:
        return sum(counters.take("sign-in", "raced@example.org", 10, 3_600).allowed for _ in range(4))

    assert sum(race(*[in_own_connection(take_four)] * 64)) == 10
