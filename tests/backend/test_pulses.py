"""A pulse is work that was started or completed; if it is missing, pages and /readyz report it."""

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from celery.signals import before_task_publish
from django.db import connection
from django.test import Client

from backend import health, site_notices
from backend.api.background_times import note_background
from backend.background_call import CallResult
from backend.celery import _note_tick, app
from backend.disks import Room
from backend.environment import Environment
from backend.listening import HeartbeatUnknown, silence_of
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
def test_beats_pulse_is_recorded_with_its_canaries_only() -> None:
    before_task_publish.connect(_note_tick, sender=CANARY)
    try:
        before_task_publish.send(sender="webhooks.send")
        assert ages() == {}
        before_task_publish.send(sender=CANARY)
        assert ages().keys() == {"beat"}
    finally:
        before_task_publish.disconnect(_note_tick, sender=CANARY)


def test_readyz_warns_of_stalled_work_and_stays_200(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "probe", health.ReadinessProbe())
    url = settings.ENVIRONMENT.database_url.rpartition("/")[0] + f"/{connection.settings_dict['NAME']}"
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url=url)
    response = Client().get("/readyz")
    assert response.status_code == 200
    assert [warning.partition(":")[0] for warning in response.json()["warnings"]] == ["beat", "worker"]


@pytest.fixture
def ours(settings: Any, transactional_db: None) -> Environment:
    """This test's own database, by an independent connection."""
    url = settings.ENVIRONMENT.database_url.rpartition("/")[0] + f"/{connection.settings_dict['NAME']}"
    environment: Environment = settings.ENVIRONMENT
    return replace(environment, database_url=url)


def test_a_containers_health_check_goes_by_the_pulse(ours: Environment) -> None:
    assert silence_of("beat", ours).startswith("last heartbeat of beat: never")
    beaten(BEAT, ago_s=LATE_AFTER_S + 1)
    assert re.match(r"last heartbeat of beat: \d+ s ago", silence_of("beat", ours))
    for name in (BEAT, CANARY):
        beaten(name, ago_s=1)
    assert silence_of("beat", ours) == silence_of("worker", ours) == ""
    beaten(CANARY, ago_s=LATE_AFTER_S + 1)
    assert re.match(r"last heartbeat of worker: \d+ s ago", silence_of("worker", ours))


def test_recent_pulse_is_read_in_any_database_encoding(ours: Environment) -> None:
    """In an SQL_ASCII database names are bytes: no pulse matched, and beat was restarted every five minutes."""
    beaten(BEAT, ago_s=1)
    assert silence_of("beat", replace(ours, database_url=f"{ours.database_url}?client_encoding=sql_ascii")) == ""


def test_silence_needs_a_working_path_of_heartbeats(ours: Environment) -> None:
    """Otherwise a database outage would restart every component."""
    beaten(CANARY, ago_s=LATE_AFTER_S + 1)
    for part, lacks in (
        ("worker", ours),  # and no beat sends canaries
        ("beat", replace(ours, broker_url="redis://127.0.0.1:1/0")),
        ("beat", replace(ours, database_url="postgresql://x:x@127.0.0.1:1/x")),
    ):
        with pytest.raises(HeartbeatUnknown):
            silence_of(part, lacks)


def test_to_listen_loads_no_django() -> None:
    """It runs twice a minute per container, on a machine that may be busy."""
    script = (
        "import backend.environment, backend.listening, sys; print([name for name in sys.modules if 'django' in name])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


class TestBanner:
    @pytest.fixture(autouse=True)
    def _looks_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(site_notices, "_looks", site_notices._Looks())

    def test_stalled_work_is_shown_on_every_page(self, db: None, client: Client, alice: Any) -> None:
        beaten(BEAT, ago_s=1)
        beaten(CANARY, ago_s=LATE_AFTER_S + 200)
        assert "No background work" not in client.get("/accounts/login/").content.decode()
        client.force_login(alice)
        page = client.get("/jobs/").content.decode()
        assert "No background work (launching, scheduling, checks) for 4 minutes" in page
        assert "periodic work" not in page

    def test_full_disk_is_shown(self, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
        full = CallResult(last=Room(free_bytes=3_000_000, num_bytes=10**9, may_write=True))
        monkeypatch.setattr(site_notices, "room_at", lambda _: full)
        assert [*site_notices.notices()] == [
            "The disk of this site is full (3 MB left). Jobs wait until space is freed."
        ]

    def test_healthy_site_shows_no_notice(self, db: None) -> None:
        for name in (BEAT, CANARY):
            beaten(name, ago_s=1)
        assert [*site_notices.notices()] == []
