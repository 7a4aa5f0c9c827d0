"""/healthz and /readyz."""

from dataclasses import replace
from typing import Any

from django.db import connection
from django.test import Client


def test_a_living_process_says_so_without_asking_anybody() -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}


def test_ready_means_that_postgres_and_the_broker_answer(db: None, settings: Any) -> None:
    url = settings.ENVIRONMENT.database_url.rpartition("/")[0] + f"/{connection.settings_dict['NAME']}"
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url=url)
    response = Client().get("/readyz")
    told = response.json()
    told.pop("warnings")  # of who beats in the background: test_pulses
    assert (response.status_code, told) == (200, {"status": "ok", "problems": [], "postgres": True, "broker": True})


def test_a_broker_that_is_away_is_503_and_is_named(settings: Any) -> None:
    settings.CELERY_BROKER_URL = "redis://:hunter2@127.0.0.1:1/0"
    response = Client().get("/readyz")
    assert (response.status_code, response.json()["broker"]) == (503, False)
    told = [problem for problem in response.json()["problems"] if problem.startswith("broker: does not answer")]
    assert told and "hunter2" not in response.content.decode() and "127.0.0.1" not in response.content.decode()


def test_a_database_that_is_away_is_503_and_is_named(settings: Any) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url="postgresql://x:hunter2@127.0.0.1:1/x")
    response = Client().get("/readyz")
    assert (response.status_code, response.json()["postgres"]) == (503, False)
    assert "hunter2" not in response.content.decode()


def test_a_database_without_tables_is_503_and_says_what_to_do(settings: Any) -> None:
    url = settings.ENVIRONMENT.database_url.rpartition("/")[0] + "/template1"
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url=url)
    assert "postgres: has no tables yet; run `manage.py migrate`" in Client().get("/readyz").json()["problems"]
