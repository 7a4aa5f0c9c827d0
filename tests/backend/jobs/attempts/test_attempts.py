"""Attempts: from queued to starting, and from recovering to the next attempt."""

from datetime import datetime

from django.db import transaction

from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.attempts.tokens import attempt_of_token, attempt_token, token_digest
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState, OutboxMessage
from tests.backend.conftest import MakeCheckpoint


def test_admitted_job_gets_reservations_attempt_and_launch(job: Job, attempt: JobAttempt) -> None:
    assert (job.state, job.fence, job.num_attempts) == ("starting", 1, 1)
    assert dict(job.reservations.values_list("role", "devices")) == {"trainer": 1, "rollout": 2}
    assert attempt.submission_id.startswith(f"{job.pk}-1-1-")
    assert OutboxMessage.objects.filter(topic="launch", key=job.pk).count() == 1
    assert list(job.events.order_by("seq").values_list("seq", "type", "to_state")) == [
        (1, "submitted", "queued"),
        (2, "state_changed", "starting"),
    ]


def test_token_is_derived_again_and_only_digest_stored(job: Job, attempt: JobAttempt) -> None:
    token = attempt_token(job.pk, 1, 1)
    assert attempt.token_sha256 == token_digest(token) != token
    assert attempt_of_token(token) == attempt
    assert attempt_of_token(attempt_token(job.pk, 1, 2)) is None
    assert attempt_of_token("\ud800\x00") is None


def test_recovering_job_keeps_devices_and_gets_new_fence(
    job: Job, attempt: JobAttempt, make_checkpoint: MakeCheckpoint, now: datetime
) -> None:
    make_checkpoint(job, step=7)
    with transaction.atomic():
        locked = locked_job(job.pk)
        change_state(locked, JobState.RECOVERING, actor="reconcile", now=now, reason="driver_lost")
        second = begin_attempt(locked, now=now, actor="reconcile")
    attempt.refresh_from_db()
    job.refresh_from_db()
    assert attempt.ended_at == now and attempt.outcome == "superseded"
    assert (second.n, second.fence, second.resume_from, second.resume_step) == (2, 2, "file:///store/1-7", 7)
    assert (job.state, job.fence, job.num_attempts) == ("starting", 2, 2)
    assert job.reservations.filter(released_at=None).count() == 2
