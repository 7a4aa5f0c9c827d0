"""Preemption against the real database: victims, replicas, claims, and the guards of the database."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from backend.accounts.models import Project, Team, User
from backend.jobs.attempts.ending import land
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState, OutboxMessage
from backend.jobs.queue.preemption import RECLAIM_DEADLINE
from backend.jobs.queue.scheduling import pools_due, schedule_pool
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.decision.victims import MIN_RUNTIME
from backend.pools.models import Claim, ResourcePool, TeamQuota
from backend.pools.services import release_elastic
from tests.backend.conftest import MakeSpec
from tests.racing import race

Theirs = Callable[..., Job]


@pytest.fixture
def theirs(other_team: Team, other_project: Project, charlie: User, pool: ResourcePool, make_spec: MakeSpec) -> Theirs:
    """A preemptible job of the other team, which owns no devices here and borrows."""

    def make(devices: int, *, now: datetime, **changes: Any) -> Job:
        spec = make_spec(devices=devices, placement={"preemptible": True}, **changes)
        return submit_job(
            team=other_team, project=other_project, by=Submitter(user=charlie, key=None), spec=spec, pool=pool, now=now
        )

    return make


def running(job: Job, *, now: datetime) -> Job:
    with transaction.atomic():
        change_state(locked_job(job.pk), JobState.RUNNING, actor="engine:1", now=now)
    job.refresh_from_db()
    return job


def state(job: Job) -> tuple[str, str]:
    job.refresh_from_db()
    return job.state, job.reason


def live(job: Job) -> dict[str, int]:
    rows = job.reservations.filter(released_at__isnull=True)
    return {f"{role}{slot}": devices for role, slot, devices in rows.values_list("role", "slot", "devices")}


@pytest.fixture
def borrowed(theirs: Theirs, pool: ResourcePool, now: datetime) -> Job:
    """Holds the whole pool, long enough to be preempted."""
    job = theirs(8, now=now)
    assert schedule_pool(pool.pk, now=now) == 1
    return running(job, now=now)


def test_reclaimed_devices_go_to_the_job_of_the_claim(
    borrowed: Job, make_job: Any, pool: ResourcePool, now: datetime
) -> None:
    assert sum(borrowed.reservations.values_list("borrowed", flat=True)) == 8
    later = now + MIN_RUNTIME
    mine = make_job(devices=4, at=later)
    assert schedule_pool(pool.pk, now=later) == 0
    assert state(borrowed) == ("pausing", "preempted") and state(mine) == ("queued", "preemption_in_progress")
    assert borrowed.requests.get().kind == "pause" and Claim.objects.get().devices == 4
    for _ in range(2):
        assert schedule_pool(pool.pk, now=later) == 0
    assert borrowed.requests.count() == 1, "one request"

    with transaction.atomic():
        land(locked_job(borrowed.pk), actor="engine:1", now=later)
    assert state(borrowed)[0] == "queued"
    assert OutboxMessage.objects.filter(topic="schedule").exists()
    assert schedule_pool(pool.pk, now=later) == 1
    assert state(mine)[0] == "starting" and not Claim.objects.exists()
    assert state(borrowed) == ("queued", "pool_full"), "it keeps its place and its size of eight"


def test_young_job_is_not_preempted(borrowed: Job, make_job: Any, pool: ResourcePool, now: datetime) -> None:
    mine = make_job(devices=4)
    schedule_pool(pool.pk, now=now + MIN_RUNTIME - timedelta(seconds=1))
    assert state(borrowed)[0] == "running" and state(mine) == ("queued", "pool_full")


def test_claim_is_deleted_with_its_job(borrowed: Job, make_job: Any, pool: ResourcePool, now: datetime) -> None:
    mine = make_job(devices=4)
    schedule_pool(pool.pk, now=now + MIN_RUNTIME)
    assert Claim.objects.exists()
    with transaction.atomic():
        change_state(locked_job(mine.pk), JobState.CANCELLED, actor="user:1", now=now)
    schedule_pool(pool.pk, now=now + MIN_RUNTIME)
    assert not Claim.objects.exists()


@pytest.fixture
def grown(make_job: Any, pool: ResourcePool, now: datetime) -> Job:
    """Two required devices, and five more that were free."""
    job: Job = make_job(devices=7, placement={"min_replicas": 1})
    assert schedule_pool(pool.pk, now=now) == 1
    return running(job, now=now)


def test_job_starts_with_all_free_replicas(grown: Job) -> None:
    assert live(grown) == {"trainer0": 1, "rollout0": 1} | {f"elastic{slot}": 1 for slot in range(5)}
    assert not grown.requests.exists(), "its order has the number; no request is needed"


def test_reclaimed_replicas_are_released_by_the_engine(
    grown: Job, make_job: Any, pool: ResourcePool, now: datetime
) -> None:
    mine = make_job(devices=4, at=now + timedelta(seconds=1))
    assert schedule_pool(pool.pk, now=now) == 0
    request = grown.requests.get()
    assert (request.kind, request.replicas) == ("resize", 3)
    assert state(grown)[0] == "running" and len(live(grown)) == 7, "still held: the engine has not answered"
    assert state(mine) == ("queued", "preemption_in_progress")
    for _ in range(2):
        with transaction.atomic():
            release_elastic(grown.pk, replicas=3, now=now)
    assert live(grown) == {"trainer0": 1, "rollout0": 1, "elastic0": 1, "elastic1": 1}
    assert schedule_pool(pool.pk, now=now) == 1 and state(mine)[0] == "starting"


def test_silent_engine_loses_replicas_at_the_deadline(
    grown: Job, make_job: Any, pool: ResourcePool, now: datetime
) -> None:
    mine = make_job(devices=4, at=now + timedelta(seconds=1))
    schedule_pool(pool.pk, now=now)
    assert schedule_pool(pool.pk, now=now + RECLAIM_DEADLINE - timedelta(seconds=1)) == 0
    assert schedule_pool(pool.pk, now=now + RECLAIM_DEADLINE) == 1
    assert state(mine)[0] == "starting" and len(live(grown)) == 4
    assert not grown.requests.filter(acknowledged_at=None).exists()


def test_replicas_return_when_the_queue_is_empty(grown: Job, make_job: Any, pool: ResourcePool, now: datetime) -> None:
    mine = make_job(devices=4, at=now + timedelta(seconds=1))
    schedule_pool(pool.pk, now=now)
    with transaction.atomic():
        release_elastic(grown.pk, replicas=3, now=now)
        grown.requests.update(acknowledged_at=now)
    schedule_pool(pool.pk, now=now)
    with transaction.atomic():
        job = locked_job(mine.pk)
        change_state(job, JobState.STOPPING, actor="engine:1", now=now)
        change_state(job, JobState.SUCCEEDED, actor="engine:1", now=now)
    schedule_pool(pool.pk, now=now)
    assert len(live(grown)) == 7
    assert grown.requests.get(acknowledged_at=None).replicas == 6
    schedule_pool(pool.pk, now=now)
    assert grown.requests.count() == 2, "no further request during a resize"


def test_tick_includes_pools_with_growable_jobs(pool: ResourcePool, make_job: Any, now: datetime) -> None:
    assert pools_due() == []
    job = make_job(devices=3)
    assert pools_due() == [pool.pk], "a job is queued"
    schedule_pool(pool.pk, now=now)
    assert pools_due() == [], "it has all its replicas"
    with transaction.atomic():
        change_state(locked_job(job.pk), JobState.STOPPING, actor="engine:1", now=now)
        change_state(locked_job(job.pk), JobState.SUCCEEDED, actor="engine:1", now=now)
    make_job(devices=8, placement={"min_replicas": 1})
    schedule_pool(pool.pk, now=now)
    assert pools_due() == [pool.pk]


def test_unused_replicas_are_given_back(grown: Job, now: datetime) -> None:
    with transaction.atomic():
        release_elastic(grown.pk, replicas=4, now=now)
    assert len(live(grown)) == 5
    with transaction.atomic():
        release_elastic(grown.pk, replicas=1, now=now)
    assert live(grown) == {"trainer0": 1, "rollout0": 1}, "required devices are never taken this way"


INSERT = (
    "INSERT INTO pools_reservation (job_id, attempt, pool_id, team_id, role, slot, devices, borrowed, created_at) "
    "VALUES (%s, 1, %s, %s, %s, %s, %s, 0, now())"
)


def refused(*statements: tuple[str, list[Any]]) -> str:
    """The database's error at commit; empty if it accepts."""
    try:
        with transaction.atomic(), connection.cursor() as db:
            for sql, values in statements:
                db.execute(sql, values)
            db.execute("SET CONSTRAINTS ALL IMMEDIATE")
            transaction.set_rollback(True)
    except IntegrityError as error:
        return str(error)
    return ""


def test_the_database_refuses_to_oversell_a_pool(grown: Job, pool: ResourcePool, team: Team) -> None:
    def row(slot: int, devices: int) -> tuple[str, list[Any]]:
        return INSERT, [grown.pk, pool.pk, team.pk, "elastic", slot, devices]

    assert refused(row(5, 1)) == ""
    assert "9 devices held, it has 8" in refused(row(5, 2))
    assert "one_live_reservation_per_slot" in refused(row(4, 1))


def test_the_database_refuses_use_above_team_ceiling(grown: Job, pool: ResourcePool, team: Team) -> None:
    TeamQuota.objects.filter(team=team).update(nominal=7, borrow_limit=0)
    row = INSERT, [grown.pk, pool.pk, team.pk, "elastic", 5, 1]
    assert "more than its ceiling" in refused(row)
    TeamQuota.objects.filter(team=team).update(borrow_limit=1)
    assert refused(row) == ""


def test_the_database_refuses_firm_work_on_borrowed_devices(grown: Job, pool: ResourcePool, team: Team) -> None:
    TeamQuota.objects.filter(team=team).update(nominal=1)
    grow: tuple[str, list[Any]] = ("UPDATE pools_reservation SET devices = 2 WHERE role = 'rollout'", [])
    assert "nobody may take back" in refused(grow)
    TeamQuota.objects.filter(team=team).update(nominal=8)


def test_the_database_refuses_elastic_replicas_without_a_trainer(grown: Job) -> None:
    alone: tuple[str, list[Any]] = ("UPDATE pools_reservation SET released_at = now() WHERE role <> 'elastic'", [])
    assert refused(alone)
    with connection.cursor() as db:
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")
        db.execute("ALTER TABLE pools_reservation DISABLE TRIGGER laminar_reservation_held_iff")
        db.execute("SET CONSTRAINTS ALL DEFERRED")
    assert "elastic replicas without a trainer" in refused(alone)


def test_the_database_refuses_overcommitted_quotas(pool: ResourcePool) -> None:
    assert "9 devices promised" in refused(("UPDATE pools_teamquota SET nominal = 1 WHERE nominal = 0", []))
    assert "8 devices promised" in refused(("UPDATE pools_resourcepool SET capacity = 7", []))


@pytest.mark.django_db(transaction=True)
def test_one_of_two_writers_bypassing_scheduler_is_refused(
    grown: Job, pool: ResourcePool, team: Team, in_own_connection: Callable[..., Any]
) -> None:
    """Five of eight are held afterwards; each of the two would fit alone, and neither sees the other's row."""
    with transaction.atomic():
        release_elastic(grown.pk, replicas=4, now=grown.created_at)
    together = threading.Barrier(2)

    def insert(slot: int) -> bool:
        try:
            with transaction.atomic(), connection.cursor() as db:
                db.execute(INSERT, [grown.pk, pool.pk, team.pk, "elastic", slot, 2])
                together.wait(60)
        except IntegrityError as error:
            assert "9 devices held, it has 8" in str(error)
            return False
        return True

    assert sorted(race(*(partial(in_own_connection(insert), slot) for slot in (7, 8)))) == [False, True]
