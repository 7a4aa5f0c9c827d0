"""A round of the scheduler against the real database."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from backend.accounts.models import Team
from backend.jobs.lifecycle import advance
from backend.jobs.models import Job, JobState, OutboxMessage
from backend.jobs.scheduling import schedule_pool
from backend.pools.models import Reservation, ResourcePool, TeamQuota


def states(*jobs: Job) -> list[tuple[str, str]]:
    for job in jobs:
        job.refresh_from_db()
    return [(job.state, job.reason) for job in jobs]


def test_the_line_starts_in_order_until_the_pool_is_full(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    jobs = [make_job(devices=3, at=now + timedelta(seconds=n)) for n in range(3)]
    assert schedule_pool(pool.pk, now=now) == 2
    assert states(*jobs) == [("starting", ""), ("starting", ""), ("queued", "team_ceiling")]
    assert schedule_pool(pool.pk, now=now) == 0


def test_reasons_are_written_once_and_wake_the_page(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    make_job(devices=8)
    waiting = make_job(devices=2, at=now + timedelta(seconds=1))
    TeamQuota.objects.update(nominal=99)
    schedule_pool(pool.pk, now=now)
    assert states(waiting) == [("queued", "pool_full")] and "2 devices" in waiting.message
    cursor, events = waiting.cursor, waiting.events.count()
    for _ in range(3):
        schedule_pool(pool.pk, now=now)
    waiting.refresh_from_db()
    assert (waiting.cursor, waiting.events.count(), cursor, events) == (cursor, 1, 2, 1)


def test_a_release_lets_the_next_one_start(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    first, second = make_job(devices=8), make_job(devices=8, at=now + timedelta(seconds=1))
    schedule_pool(pool.pk, now=now)
    OutboxMessage.objects.all().delete()
    first.refresh_from_db()
    for state in (JobState.RUNNING, JobState.STOPPING, JobState.SUCCEEDED):
        advance(first, state, actor="engine:1", now=now)
    assert OutboxMessage.objects.get(topic="schedule").key == pool.pk, "the end of a job calls the scheduler"
    assert schedule_pool(pool.pk, now=now) == 1
    assert states(second) == [("starting", "")]


def test_teams_have_quotas_of_their_own(make_job: Any, pool: ResourcePool, team: Team, now: datetime) -> None:
    job = make_job(devices=8)
    TeamQuota.objects.filter(team=team).update(nominal=4)
    assert schedule_pool(pool.pk, now=now) == 0
    assert states(job) == [("queued", "exceeds_max")]
    TeamQuota.objects.filter(team=team).update(nominal=8)
    assert schedule_pool(pool.pk, now=now) == 1


def test_reservations_carry_the_spec_s_shares(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    job = make_job(rollout={"replicas": 3}, resources={"trainer_devices": 2, "devices_per_replica": 2})
    assert job.devices == 8
    schedule_pool(pool.pk, now=now)
    assert dict(Reservation.objects.values_list("role", "devices")) == {"trainer": 2, "rollout": 6}


def test_a_long_line_is_worked_off_in_rounds_that_call_each_other(
    make_job: Any, pool: ResourcePool, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.jobs.scheduling.MOST_STARTS", 1)
    monkeypatch.setattr("backend.jobs.scheduling.MOST_EXPLANATIONS", 2)
    for n in range(8):
        make_job(devices=4, at=now + timedelta(seconds=n))
    rounds = 0
    while OutboxMessage.objects.filter(topic="schedule").exists():
        OutboxMessage.objects.filter(topic="schedule").delete()
        schedule_pool(pool.pk, now=now)
        rounds += 1
    assert rounds == 3
    assert Job.objects.filter(state="starting").count() == 2
    assert Job.objects.filter(state="queued", reason="team_ceiling").count() == 6


def test_a_spec_of_another_release_fails_alone(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    old, new = make_job(), make_job(at=now + timedelta(seconds=1))
    with connection.cursor() as db:  # behind the guard's back
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")
        db.execute("ALTER TABLE jobs_job DISABLE TRIGGER laminar_guard_job")
        db.execute("UPDATE jobs_job SET spec = %s WHERE id = %s", ['{"schema_version": 0}', old.pk])
        db.execute("ALTER TABLE jobs_job ENABLE TRIGGER laminar_guard_job")
    assert schedule_pool(pool.pk, now=now) == 1
    assert [state for state, _ in states(old, new)] == ["failed", "starting"]
    assert old.failure_class == "config" and not old.reservations.exists()


def test_a_pool_that_is_gone_is_no_error(db: None, now: datetime) -> None:
    assert schedule_pool("pool_gone", now=now) == 0
