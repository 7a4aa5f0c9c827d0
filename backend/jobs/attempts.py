"""Beginning an attempt: the one way from waiting or recovering to starting.

Invariants:
- an attempt has a number and an epoch of its own, both one more than the last;
- an earlier attempt that had not ended is ended in the same transaction, and the engine is asked to stop it: from
  here on its epoch is old and what it still sends has no effect;
- the launcher hears of it from the outbox, after commit.
"""

from datetime import datetime

from backend.jobs.attempt_tokens import attempt_token, token_digest
from backend.jobs.lifecycle import advance
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.outbox import enqueue


def begin_attempt(
    job: Job, *, now: datetime, resume_from: str = "", actor: str = "scheduler", reason: str = "", message: str = ""
) -> JobAttempt:
    """A locked job, queued (with fresh reservations) or recovering (with those it holds), gets its next attempt."""
    n, epoch = job.num_attempts + 1, job.epoch + 1
    if job.attempts.filter(ended_at__isnull=True).update(ended_at=now, outcome="superseded"):
        enqueue("stop", job.pk, now)
    advance(
        job,
        JobState.STARTING,
        actor=actor,
        now=now,
        reason=reason,
        message=message,
        phase="provisioning",
        data={"attempt": n, "epoch": epoch, "resume_from": resume_from},
        epoch=epoch,
        num_attempts=n,
    )
    attempt = JobAttempt.objects.create(
        job=job,
        n=n,
        epoch=epoch,
        submission_id=f"{job.pk}-{n}-{epoch}",
        token_sha256=token_digest(attempt_token(job.pk, n, epoch)),
        resume_from=resume_from,
        created_at=now,
    )
    enqueue("launch", job.pk, now)
    return attempt
