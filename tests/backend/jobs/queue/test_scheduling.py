"""A round of the scheduler against the real database."""

import math
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from backend.accounts.models import Team
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import change_state
from backend.jobs.models import Job, JobState, OutboxMessage
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.decision.decide import ENTRY_PENALTY_S
from backend.pools.history import histories_of, write_histories
from backend.pools.models import Reservation, ResourcePool, TeamQuota


def states(*jobs: Job) -> list[tuple[str, str]]:
    for job in jobs:
        job.refresh_from_db()
    return [(job.state, job.reason) for job in jobs]


def test_queue_starts_in_order_until_pool_is_full(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    jobs = [make_job(devices=3, at=now + timedelta(seconds=n)) for n in range(3)]
    assert schedule_pool(pool.pk, now=now) == 2
    assert states(*jobs) == [("starting", ""), ("starting", ""), ("queued", "team_ceiling")]
    assert schedule_pool(pool.pk, now=now) == 0


def test_reasons_are_written_once_and_notify_the_page(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    make_job(devices=8, placement={"preemptible": True})
    waiting = make_job(devices=2, at=now + timedelta(seconds=1), placement={"preemptible": True})
    schedule_pool(pool.pk, now=now)
    assert states(waiting) == [("queued", "pool_full")] and "2 devices" in waiting.message
    cursor, events = waiting.cursor, waiting.events.count()
    for _ in range(3):
        schedule_pool(pool.pk, now=now)
    waiting.refresh_from_db()
    assert (waiting.cursor, waiting.events.count(), cursor, events) == (cursor, 1, 2, 1)


def test_locked_job_gets_its_reason_in_the_next_round(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    """As far as one connection can show it: a job cancelled between read and write keeps its state."""
    make_job(devices=8)
    waiting = make_job(devices=2, at=now + timedelta(seconds=1))
    schedule_pool(pool.pk, now=now)
    cancel_job(waiting.pk, actor="user:1", now=now)
    schedule_pool(pool.pk, now=now)
    assert states(waiting) == [("cancelled", "user")]


def test_queue_shows_its_last_evaluation(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    make_job(devices=8)
    waiting = make_job(devices=2, at=now + timedelta(seconds=1))
    seen = []
    for seconds in (0, 9, 10, 11, 30):
        schedule_pool(pool.pk, now=now + timedelta(seconds=seconds))
        waiting.refresh_from_db()
        seen.append((waiting.evaluated_at - now).total_seconds())
    assert seen == [0, 0, 10, 10, 30]


def test_closed_pool_starts_nothing_until_opened(job: Job, pool: ResourcePool, now: datetime) -> None:
    ResourcePool.objects.update(is_open=False)
    assert schedule_pool(pool.pk, now=now) == 0
    assert states(job) == [("queued", "pool_closed")]
    ResourcePool.objects.update(is_open=True)
    assert schedule_pool(pool.pk, now=now) == 1


def test_failed_start_waits_for_backoff(job: Job, pool: ResourcePool, now: datetime) -> None:
    Job.objects.update(not_before=now + timedelta(minutes=1))
    assert schedule_pool(pool.pk, now=now) == 0
    assert states(job) == [("queued", "backoff_until")] and "12:01:00" in job.message
    assert schedule_pool(pool.pk, now=now + timedelta(minutes=1)) == 1


def test_usage_history_decays(make_job: Any, pool: ResourcePool, team: Team, now: datetime) -> None:
    """The same result, however often it is updated."""
    make_job(devices=4)
    schedule_pool(pool.pk, now=now)
    penalty = 4 * ENTRY_PENALTY_S
    later = now + timedelta(hours=24)
    at_once = histories_of(pool, now=later)[team.pk]
    for hours in (1, 5, 6, 20):
        at = now + timedelta(hours=hours)
        write_histories(pool, histories_of(pool, now=at), now=at)
    assert histories_of(pool, now=later)[team.pk] == pytest.approx(at_once)
    held = 4 * 86_400 / math.log(2) * (1 - 0.5)
    assert at_once == pytest.approx(penalty / 2 + held)
    Reservation.objects.update(released_at=later)
    assert histories_of(pool, now=later + timedelta(days=1))[team.pk] == pytest.approx(at_once / 2)
    Reservation.objects.update(released_at=None)


def test_release_starts_the_next_job(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    first, second = make_job(devices=8), make_job(devices=8, at=now + timedelta(seconds=1))
    schedule_pool(pool.pk, now=now)
    OutboxMessage.objects.all().delete()
    first.refresh_from_db()
    for state in (JobState.RUNNING, JobState.STOPPING, JobState.SUCCEEDED):
        change_state(first, state, actor="engine:1", now=now)
    assert OutboxMessage.objects.get(topic="schedule").key == pool.pk, "the end of a job triggers the scheduler"
    assert schedule_pool(pool.pk, now=now) == 1
    assert states(second) == [("starting", "")]


def test_teams_have_quotas_of_their_own(make_job: Any, pool: ResourcePool, team: Team, now: datetime) -> None:
    job = make_job(devices=8)
    TeamQuota.objects.filter(team=team).update(nominal=4)
    assert schedule_pool(pool.pk, now=now) == 0
    assert states(job) == [("queued", "exceeds_max")], "its own eight cannot be reclaimed, and four are left"
    TeamQuota.objects.filter(team=team).update(nominal=8)
    assert schedule_pool(pool.pk, now=now) == 1


def test_reservations_carry_the_spec_s_shares(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    job = make_job(rollout={"replicas": 3}, trainer={"backend": "deepspeed"}, resources={"trainer_devices": 2})
    assert job.devices == 5
    schedule_pool(pool.pk, now=now)
    assert dict(Reservation.objects.values_list("role", "devices")) == {"trainer": 2, "rollout": 3}


def test_long_queue_takes_several_rounds(
    make_job: Any, pool: ResourcePool, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.jobs.queue.scheduling.MOST_STARTS", 1)
    monkeypatch.setattr("backend.jobs.queue.scheduling.MOST_EXPLANATIONS", 2)
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


def test_spec_of_another_release_fails_alone(make_job: Any, pool: ResourcePool, now: datetime) -> None:
    old, new = make_job(), make_job(at=now + timedelta(seconds=1))
    with connection.cursor() as db:  # with the guard disabled
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")
        db.execute("ALTER TABLE jobs_job DISABLE TRIGGER laminar_guard_job")
        db.execute("UPDATE jobs_job SET spec = %s WHERE id = %s", ['{"schema_version": 0}', old.pk])
        db.execute("ALTER TABLE jobs_job ENABLE TRIGGER laminar_guard_job")
        db.execute("SET CONSTRAINTS ALL DEFERRED")
    assert schedule_pool(pool.pk, now=now) == 1
    assert [state for state, _ in states(old, new)] == ["failed", "starting"]
    assert old.failure_class == "config" and not old.reservations.exists()


def test_deleted_pool_is_no_error(db: None, now: datetime) -> None:
    assert schedule_pool("pool_gone", now=now) == 0
