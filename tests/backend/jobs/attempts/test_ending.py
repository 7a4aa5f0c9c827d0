"""What happens to a job when its attempt ends: the same whether the driver reported it or reconcile noticed."""

from datetime import datetime

import pytest
from django.db import transaction

from backend.jobs.attempts.ending import LOST, end_as_reported, end_stopped, end_unreported, retry_after_last
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import ControlRequest, Job, JobAttempt, JobState

pytestmark = pytest.mark.django_db
MESSAGE = "A node went away."


@pytest.fixture
def running(job: Job, attempt: JobAttempt, now: datetime) -> Job:
    with transaction.atomic():
        change_state(locked_job(job.pk), JobState.RUNNING, actor="engine:1", now=now)
    job.refresh_from_db()
    return job


def report_end(job: Job, attempt: JobAttempt, outcome: str, now: datetime, *, failure_class: str = "") -> Job:
    with transaction.atomic():
        job = locked_job(job.pk)
        end_as_reported(job, attempt, outcome=outcome, failure_class=failure_class, message=MESSAGE, now=now)
        if job.state == JobState.RECOVERING:
            retry_after_last(job, actor="reconcile", now=now)
    return job


def unheard(job: Job, attempt: JobAttempt, now: datetime) -> Job:
    with transaction.atomic():
        job = locked_job(job.pk)
        end_unreported(job, attempt, outcome=LOST, message=MESSAGE, log_tail="", actor="reconcile", now=now)
    return job


@pytest.mark.parametrize("by", ["its driver", "reconcile"])
def test_lost_node_leads_to_next_attempt(running: Job, attempt: JobAttempt, now: datetime, by: str) -> None:
    if by == "reconcile":
        job = unheard(running, attempt, now)
    else:
        job = report_end(running, attempt, "failed", now, failure_class="infrastructure")
    assert (job.state, job.num_attempts, job.message) == ("starting", 2, f"{MESSAGE} Restarting from the beginning.")
    first = job.attempts.get(n=1)
    assert (first.failure_class, first.ended_at) == ("infrastructure", now)
    assert job.reservations.filter(released_at__isnull=True).exists(), "the first retry keeps its devices"


def test_engine_pausing_by_itself_pauses_its_job(running: Job, attempt: JobAttempt, now: datetime) -> None:
    job = report_end(running, attempt, "paused", now)
    assert (job.state, job.reason, job.message) == ("paused", "engine", f"{MESSAGE} Will start from the beginning.")
    assert not ControlRequest.objects.filter(acknowledged_at__isnull=True).exists()


@pytest.mark.parametrize("target", ["cancelled", "failed"])
@pytest.mark.parametrize("by", ["its driver", "reconcile"])
def test_stopping_job_ends_in_its_target_state(
    running: Job, attempt: JobAttempt, now: datetime, by: str, target: str
) -> None:
    with transaction.atomic():
        job = locked_job(running.pk)
        change_state(job, JobState.STOPPING, actor="test", now=now, reason="asked", message="Why.", target_state=target)
        if by == "reconcile":
            end_stopped(job, actor="reconcile", now=now)
    if by == "its driver":
        job = report_end(job, attempt, "succeeded", now)
    assert (job.state, job.reason) == (target, "asked")
    unsaid = "Why." if target == "failed" else "The engine stopped without reporting an outcome."
    assert job.message == (MESSAGE if by == "its driver" else unsaid)


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_failure_without_retry_ends_the_job(running: Job, attempt: JobAttempt, now: datetime, outcome: str) -> None:
    failure_class = "user_code" if outcome == "failed" else ""
    job = report_end(running, attempt, outcome, now, failure_class=failure_class)
    assert (job.state, job.failure_class, job.reason) == (outcome, failure_class, "engine_finished")
    moves = job.events.exclude(to_state="").order_by("seq").values_list("to_state", flat=True)
    assert list(moves)[-2:] == ["stopping", outcome]
