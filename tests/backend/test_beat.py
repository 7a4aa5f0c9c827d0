"""Beat ticks only tasks that a worker knows, and a worker records each background task's duration."""

import pytest
from celery import Celery
from celery.fixups.django import DjangoWorkerFixup  # type: ignore[attr-defined]  # the stubs lack it
from django.core import checks

from backend.api.models import BackgroundTime
from backend.celery import app


def registered() -> Celery:
    app.loader.import_default_modules()
    return app


def test_every_tick_names_a_background_task_that_exists() -> None:
    ticks = {name: entry["task"] for name, entry in registered().conf.beat_schedule.items()}
    assert ticks and not {name: task for name, task in ticks.items() if task not in app.tasks}


def test_worker_starts_without_system_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import every route, which this process does not serve."""
    ran: list[object] = []
    monkeypatch.setattr(checks, "run_checks", lambda **more: ran.append(more))
    monkeypatch.setattr(DjangoWorkerFixup, "django_setup", lambda fixup: None)
    DjangoWorkerFixup(app).validate_models()
    assert not ran


def test_duration_of_a_background_task_is_recorded(db: None) -> None:
    registered().tasks["webhooks.send"].apply()
    noted = BackgroundTime.objects.get(name="webhooks.send")
    assert (noted.runs, noted.failures) == (1, 0) and noted.seconds > 0
