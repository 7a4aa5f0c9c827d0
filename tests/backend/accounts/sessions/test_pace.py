"""How often a user's browsers may request pages: far more than pages poll by themselves, but bounded."""

from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from backend.accounts.models import User
from backend.accounts.sessions import pace as module
from backend.accounts.sessions.pace import PAGES_A_MINUTE, Pace
from tests.backend.conftest import Api
from tests.racing import race


def browser_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A fixed clock; three pages a minute."""
    now = [1_000.0]
    monkeypatch.setattr(module, "pace", Pace(lambda: now[0]))
    monkeypatch.setattr(module, "PAGES_A_MINUTE", 3)

    def pass_seconds(seconds: float) -> None:
        now[0] += seconds

    return pass_seconds


def test_page_rate_is_per_user_across_browsers(alice: User, bob: User, pass_time: Callable[[float], None]) -> None:
    here, there, his = browser_of(alice), browser_of(alice), browser_of(bob)
    assert [each.get("/jobs/").status_code for each in (here, there, here, there, here)] == [200, 200, 200, 429, 429]
    refused = here.get("/jobs/")
    assert b"Try again in 20 s" in refused.content and refused["Retry-After"] == "20"
    assert his.get("/jobs/").status_code == 200, "another user is not limited"
    pass_time(20)
    assert [here.get("/jobs/").status_code for _ in range(2)] == [200, 429], "refusals are not counted"


def test_keys_and_signed_out_visitors_have_other_limits(
    api: Api, alice: User, pass_time: Callable[[float], None]
) -> None:
    browser = browser_of(alice)
    assert [browser.get("/jobs/").status_code for _ in range(4)][-1] == 429
    assert api.get("/me").status_code == 200
    assert Client().get("/accounts/login/").status_code == 200


def test_a_refusal_costs_the_database_less_than_the_page(alice: User, pass_time: Callable[[float], None]) -> None:
    browser = browser_of(alice)
    browser.get("/jobs/")

    def statements(status: int) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert browser.get("/jobs/").status_code == status
            return len(queries)

    of_a_page, _ = statements(200), statements(200)
    assert statements(429) == 2 < of_a_page, "the session and the user"


def test_thirty_open_pages_that_pull_every_second_never_meet_it() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    for second in range(600):
        now[0] = float(second)
        assert not any(pace.wait_s("alice", most=PAGES_A_MINUTE) for _ in range(30)), second


def test_of_many_at_once_as_many_pass_as_may() -> None:
    pace = Pace(lambda: 5.0)

    def count_passes() -> int:
        return sum(pace.wait_s("alice", most=100) == 0.0 for _ in range(50))

    assert sum(race(*[count_passes] * 8)) == 100
