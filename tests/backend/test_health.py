"""/healthz and /readyz."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client

from backend import health


@pytest.fixture(autouse=True)
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """No probe yet, and a fixed clock."""
    now = [1_000.0]
    monkeypatch.setattr(health, "probe", health.ReadinessProbe(lambda: now[0]))

    def pass_seconds(seconds: float) -> None:
        now[0] += seconds

    return pass_seconds


def test_healthz_probes_no_dependency() -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}


def test_ready_means_that_postgres_and_the_broker_answer(db: None, settings: Any) -> None:
    url = settings.ENVIRONMENT.database_url.rpartition("/")[0] + f"/{connection.settings_dict['NAME']}"
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url=url)
    response = Client().get("/readyz")
    answer = {name: response.json()[name] for name in ("status", "problems", "postgres", "broker")}
    assert (response.status_code, answer) == (200, {"status": "ok", "problems": [], "postgres": True, "broker": True})


def test_a_broker_that_is_away_is_503_and_is_named(settings: Any) -> None:
    settings.CELERY_BROKER_URL = "redis://:hunter2@127.0.0.1:1/0"
    response = Client().get("/readyz")
    assert (response.status_code, response.json()["broker"]) == (503, False)
    problems = [problem for problem in response.json()["problems"] if problem.startswith("broker: does not respond")]
    assert problems and "hunter2" not in response.content.decode() and "127.0.0.1" not in response.content.decode()


def test_a_database_that_is_away_is_503_and_is_named(settings: Any) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url="postgresql://x:hunter2@127.0.0.1:1/x")
    response = Client().get("/readyz")
    assert (response.status_code, response.json()["postgres"]) == (503, False)
    assert "hunter2" not in response.content.decode()


def test_a_database_without_tables_is_503_and_says_what_to_do(settings: Any) -> None:
    url = settings.ENVIRONMENT.database_url.rpartition("/")[0] + "/template1"
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url=url)
    assert "postgres: has no tables yet; run `manage.py migrate`" in Client().get("/readyz").json()["problems"]


def test_however_many_ask_one_look_a_second_is_made(
    db: None, settings: Any, monkeypatch: pytest.MonkeyPatch, pass_time: Callable[[float], None]
) -> None:
    connected, connect = [], psycopg.connect

    def counted(*address: Any, **options: Any) -> Any:
        connected.append(address)
        return connect(*address, **options)

    monkeypatch.setattr(psycopg, "connect", counted)
    with ThreadPoolExecutor(8) as threads:
        bodies = list(threads.map(lambda _: Client().get("/readyz").content, range(40)))
    of_one_probe = len(connected)
    assert 1 <= of_one_probe <= 2 and len(set(bodies)) == 1
    pass_time(0.9)
    Client().get("/readyz")
    assert len(connected) == of_one_probe
    pass_time(0.2)
    Client().get("/readyz")
    assert len(connected) == 2 * of_one_probe


def test_problem_shows_within_a_second_and_logs_once_a_probe(
    settings: Any, caplog: pytest.LogCaptureFixture, pass_time: Callable[[float], None]
) -> None:
    good = settings.CELERY_BROKER_URL
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"
    with caplog.at_level(logging.ERROR, logger="django.request"):
        assert [Client().get("/readyz").json()["broker"] for _ in range(5)] == [False] * 5
    assert len([line for line in caplog.records if "/readyz" in line.getMessage()]) == 1
    settings.CELERY_BROKER_URL = good
    pass_time(1.1)
    assert Client().get("/readyz").json()["broker"] is True
