"""Many concurrent clients against the real database, each with a connection of its own."""

import contextlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Sum

from backend.accounts.models import Project, Team, User
from backend.errors import InvalidState
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import LostRace, change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.submit import submit_job
from backend.pools.models import Reservation, ResourcePool
from tests.racing import race
from tests.waiting import GIVES_UP_AFTER_S, eventually

CLIENTS = 16
pytestmark = pytest.mark.django_db(transaction=True)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.long
def test_pool_of_eight_is_never_oversold(
    pool: ResourcePool, make_job: Any, in_own_connection: Callable[..., Any]
) -> None:
    """16 clients submit, schedule, cancel and finish jobs of random sizes; a watcher sums up the held devices."""
    done = threading.Event()
    worst: list[int] = []

    def client(seed: int) -> int:
        rng = random.Random(seed)
        started = 0
        for _ in range(6):
            job = make_job(devices=rng.choice([2, 2, 3, 4, 8]), at=now())
            started += schedule_pool(pool.pk, now=now())
            if rng.random() < 0.3:
                with contextlib.suppress(InvalidState):  # another client has already finished it
                    cancel_job(job.pk, actor="user:1", now=now())
            _finish_one(rng)
            started += schedule_pool(pool.pk, now=now())
            connection.close()  # as between requests: fewer connections than clients
        return started

    def watch() -> None:
        live = Reservation.objects.filter(pool=pool, released_at__isnull=True)
        while not done.is_set():
            worst.append(live.aggregate(held=Sum("devices"))["held"] or 0)
            connection.close()

    watcher = threading.Thread(target=in_own_connection(watch))
    watcher.start()
    with ThreadPoolExecutor(CLIENTS) as threads:
        started = sum(threads.map(in_own_connection(client), range(CLIENTS)))
    done.set()
    watcher.join()
    assert 0 < max(worst) <= pool.capacity
    assert started >= 10
    for job in Job.objects.all():
        holds = job.reservations.filter(released_at=None).exists()
        assert holds == (job.state in {"starting", "running", "recovering", "pausing", "stopping"})
        assert list(job.events.order_by("seq").values_list("seq", flat=True)) == [*range(1, job.events.count() + 1)]


def _finish_one(rng: random.Random) -> None:
    ids = list(JobAttempt.objects.filter(ended_at=None).values_list("job_id", flat=True))
    if not ids:
        return
    with transaction.atomic():
        job = locked_job(rng.choice(ids))
        if job.state == JobState.STARTING:
            change_state(job, JobState.STOPPING, actor="engine:1", now=now())
        if job.state == JobState.STOPPING:
            change_state(job, JobState.SUCCEEDED, actor="engine:1", now=now())


def test_sixteen_requests_with_one_key_make_one_job(
    api_of: Any, alice: User, project: Project, pool: ResourcePool, in_own_connection: Callable[..., Any]
) -> None:
    body = {"project": project.pk, "spec": {"name": "Sums"}}
    submit = in_own_connection(lambda program: program.post("/jobs", body, key="raced"))
    responses = race(*(partial(submit, api_of(alice)) for _ in range(CLIENTS)))
    assert Job.objects.count() == 1
    answered = [response for response in responses if response.status_code == 202]
    assert {response.status_code for response in responses} <= {202, 409}
    assert {response.json()["id"] for response in answered} == {Job.objects.get().pk}
    assert sum("Idempotency-Replayed" not in response for response in answered) == 1
    assert all(response["Retry-After"] for response in responses if response.status_code == 409)


def test_duplicate_of_request_in_progress_is_409(
    api: Any, project: Project, pool: ResourcePool, monkeypatch: pytest.MonkeyPatch, in_own_connection: Any
) -> None:
    working, may_end = threading.Event(), threading.Event()

    def slow_submit(**kwargs: Any) -> Job:
        working.set()
        assert may_end.wait(60)
        return submit_job(**kwargs)

    monkeypatch.setattr("backend.jobs.rest.jobs.submit_job", slow_submit)
    body = {"project": project.pk, "spec": {"name": "Sums"}}
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(in_own_connection(lambda: api.post("/jobs", body, key="slow")))
        assert working.wait(60)
        second = api.post("/jobs", body, key="slow")
        may_end.set()
        assert (second.status_code, second.json()["code"], second.json()["retryable"]) == (409, "in_flight", True)
        assert first.result().status_code == 202
    assert api.post("/jobs", body, key="slow")["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize("before", ["queued", "starting", "running"])
def test_sixteen_cancels_are_one(
    job: Job, pool: ResourcePool, in_own_connection: Callable[..., Any], before: str
) -> None:
    if before != "queued":
        schedule_pool(pool.pk, now=now())
    if before == "running":
        with transaction.atomic():
            change_state(locked_job(job.pk), JobState.RUNNING, actor="engine:1", now=now())
    changed = race(*[in_own_connection(lambda: cancel_job(job.pk, actor="user:1", now=now())[1])] * CLIENTS)
    assert sum(changed) == 1
    end = "cancelled" if before == "queued" else "stopping"
    assert job.events.filter(to_state=end).count() == 1
    assert job.requests.count() == (0 if before == "queued" else 1)


def blocked_sessions() -> list[Any]:
    """The database sessions that wait for a lock of this one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))")
        sessions: list[Any] = cursor.fetchall()
    return sessions


def test_cancel_waits_for_a_start_in_progress(
    job: Job, pool: ResourcePool, in_own_connection: Callable[..., Any]
) -> None:
    """By the lock of `locked_job`: without it the cancellation sees a queued job, and fails with LostRace."""
    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            assert schedule_pool(pool.pk, now=now()) == 1
            cancel = threads.submit(in_own_connection(lambda: cancel_job(job.pk, actor="user:1", now=now())))
            eventually(blocked_sessions, "the cancellation waits for the job's row")
        assert cancel.result()[1]
    job.refresh_from_db()
    held = job.reservations.filter(released_at=None).count()
    assert (job.state, held, job.requests.count()) == ("stopping", 2, 1)


def test_scheduler_skips_a_job_that_is_being_cancelled(
    job: Job, pool: ResourcePool, in_own_connection: Callable[..., Any]
) -> None:
    with ThreadPoolExecutor(1) as threads, transaction.atomic():
        cancel_job(job.pk, actor="user:1", now=now())
        started = threads.submit(in_own_connection(lambda: schedule_pool(pool.pk, now=now())))
        assert started.result(GIVES_UP_AFTER_S) == 0, "the round does not wait"
    job.refresh_from_db()
    assert (job.state, job.reservations.count(), job.requests.count()) == ("cancelled", 0, 0)


def test_unlocked_concurrent_change_is_detected(job: Job) -> None:
    stale = Job.objects.get(pk=job.pk)
    cancel_job(job.pk, actor="user:1", now=now())
    with pytest.raises(LostRace):
        change_state(stale, JobState.STARTING, actor="scheduler", now=now())
    connection.close()


def test_submit_failing_midway_leaves_nothing(
    team: Team, make_job: Any, monkeypatch: pytest.MonkeyPatch, pool: ResourcePool
) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("backend.jobs.lifecycle.nudge_at_commit", break_down)  # after all rows are written
    with pytest.raises(RuntimeError):
        make_job()
    assert not Job.objects.exists()
