"""A pulse is work that was begun or came to its end; where one is missing, pages and /readyz say so."""

from dataclasses import replace
from typing import Any

import pytest
from celery.signals import before_task_publish
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from backend import health, site_notices
from backend.api.background_times import note_background
from backend.celery import _note_tick, app
from backend.pulses import BEAT, CANARY, LATE_AFTER_S, ages


def beaten(name: str, *, ago_s: float) -> None:
    note_background(name, 0.0)
    with connection.cursor() as db:
        past = "UPDATE api_backgroundtime SET last_at = clock_timestamp() - make_interval(secs => %s) WHERE name = %s"
        db.execute(past, [ago_s, name])


def test_a_canary_that_came_through_is_the_workers_pulse(db: None) -> None:
    assert ages() == {}
    app.loader.import_default_modules()
    app.tasks[CANARY].apply()
    assert ages().keys() == {"worker"} and 0 <= ages()["worker"] < 5


@pytest.mark.django_db(transaction=True)
def test_beats_pulse_is_noted_with_every_canary_that_it_sends_and_with_no_other() -> None:
    before_task_publish.connect(_note_tick, sender=CANARY)
    try:
        before_task_publish.send(sender="webhooks.send")
        assert ages() == {}
        before_task_publish.send(sender=CANARY)
        assert ages().keys() == {"beat"}
    finally:
        before_task_publish.disconnect(_note_tick, sender=CANARY)


def test_ready_warns_of_background_work_that_stands_still_and_serves_on(
    db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "looks", health.Looks())
    url = settings.ENVIRONMENT.database_url.rpartition("/")[0] + f"/{connection.settings_dict['NAME']}"
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url=url)
    response = Client().get("/readyz")
    assert response.status_code == 200
    assert [warning.partition(":")[0] for warning in response.json()["warnings"]] == ["beat", "worker"]


def test_a_containers_health_check_goes_by_the_pulse(db: None) -> None:
    with pytest.raises(CommandError, match="beat was heard of never"):
        call_command("check_pulse", "beat")
    beaten(BEAT, ago_s=LATE_AFTER_S + 1)
    with pytest.raises(CommandError, match="31 s ago"):
        call_command("check_pulse", "beat")
    beaten(BEAT, ago_s=1)
    call_command("check_pulse", "beat")


class TestBanner:
    @pytest.fixture(autouse=True)
    def _looks_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(site_notices, "_looks", site_notices._Looks())

    def test_work_that_stands_still_is_said_on_every_page(self, db: None, client: Client, alice: Any) -> None:
        beaten(BEAT, ago_s=1)
        beaten(CANARY, ago_s=LATE_AFTER_S + 200)
        assert "nothing has been heard of" not in client.get("/accounts/login/").content.decode()
        client.force_login(alice)
        page = client.get("/jobs/").content.decode()
        assert "For 4 minutes nothing has been heard of what is done in the background" in page
        assert "what is done at intervals" not in page

    def test_a_full_disk_is_said(self, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(site_notices, "free_bytes", lambda: 3_000_000)
        assert [*site_notices.notices()] == [
            "The disk of this site is full (3 MB left). Jobs wait until there is room again."
        ]

    def test_while_all_is_well_nothing_is_said(self, db: None) -> None:
        for name in (BEAT, CANARY):
            beaten(name, ago_s=1)
        assert [*site_notices.notices()] == []
