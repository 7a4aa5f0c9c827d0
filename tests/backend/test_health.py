"""/healthz and /readyz."""

from dataclasses import replace
from typing import Any

from django.test import Client


def test_a_living_process_says_so_without_asking_anybody() -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}


def test_ready_means_that_postgres_and_the_broker_answer() -> None:
    response = Client().get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ok", "postgres": True, "broker": True})


def test_a_broker_that_is_away_is_503(settings: Any) -> None:
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"
    response = Client().get("/readyz")
    assert (response.status_code, response.json()["broker"], response.json()["postgres"]) == (503, False, True)


def test_a_database_that_is_away_is_503(settings: Any) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url="postgresql://x:y@127.0.0.1:1/x")
    response = Client().get("/readyz")
    assert (response.status_code, response.json()["postgres"]) == (503, False)
