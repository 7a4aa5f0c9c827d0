"""POST /jobs/{id}/cancel, at every stage."""

from datetime import datetime
from typing import Any

import pytest

from backend.jobs.lifecycle import change_state
from backend.jobs.models import Job, JobAttempt, JobState, OutboxMessage


def test_queued_job_is_cancelled_at_once(api: Any, job: Job) -> None:
    OutboxMessage.objects.all().delete()
    response = api.post(f"/jobs/{job.pk}/cancel")
    assert (response.status_code, response.json()["state"]) == (202, "cancelled")
    assert response.json()["finished_at"] is not None
    assert OutboxMessage.objects.get().topic == "schedule"
    assert not job.requests.exists()


@pytest.mark.parametrize("state", ["starting", "running", "recovering"])
def test_job_holding_devices_is_asked_to_stop(
    api: Any, job: Job, attempt: JobAttempt, now: datetime, state: str
) -> None:
    if state != "starting":
        change_state(job, JobState(state), actor="engine:1", now=now)
    response = api.post(f"/jobs/{job.pk}/cancel")
    assert (response.status_code, response.json()["state"]) == (202, "stopping")
    job.refresh_from_db()
    assert job.target_state == "cancelled"
    assert job.requests.get().kind == "cancel"
    assert job.reservations.filter(released_at=None).count() == 2, "they are released when the engine has ended"


def test_twice_is_the_same_as_once(api: Any, job: Job, attempt: JobAttempt) -> None:
    codes = [api.post(f"/jobs/{job.pk}/cancel").status_code for _ in range(3)]
    assert codes == [202, 200, 200]
    assert job.requests.count() == 1 and job.events.filter(to_state="stopping").count() == 1


def test_cancelling_a_cancelled_job_is_a_no_op(api: Any, job: Job) -> None:
    assert [api.post(f"/jobs/{job.pk}/cancel").status_code for _ in range(2)] == [202, 200]


@pytest.mark.parametrize("end", ["succeeded", "failed"])
def test_finished_job_cannot_be_cancelled(api: Any, job: Job, attempt: JobAttempt, now: datetime, end: str) -> None:
    for state in (JobState.RUNNING, JobState.STOPPING, JobState(end)):
        change_state(job, state, actor="engine:1", now=now)
    response = api.post(f"/jobs/{job.pk}/cancel")
    problem = response.json()
    assert (response.status_code, problem["code"], problem["state"], problem["allowed"]) == (
        409,
        "invalid_state",
        end,
        [],
    )
    job.refresh_from_db()
    assert job.state == end


def test_stopping_job_keeps_its_target_state(api: Any, job: Job, attempt: JobAttempt, now: datetime) -> None:
    change_state(job, JobState.STOPPING, actor="reconcile", now=now, target_state="failed")
    assert api.post(f"/jobs/{job.pk}/cancel").status_code == 200
    job.refresh_from_db()
    assert job.target_state == "failed" and not job.requests.exists()
