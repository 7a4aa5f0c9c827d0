"""Beginning an attempt: the one way from waiting or recovering to starting.

Invariants:
- an attempt has a number and a fence of its own, both one more than the last;
- an earlier attempt that had not ended is ended in the same transaction, and the engine is asked to stop it: from
  here on its fence is old and what it still sends has no effect;
- it goes on from the newest checkpoint, and an evaluation begins again; what was wanted of the attempt before is not
  wanted of this one;
- the launcher hears of it from the outbox, after commit.
"""

from datetime import datetime

from backend.jobs.attempts.resume_points import resume_point
from backend.jobs.attempts.tokens import attempt_token, token_digest
from backend.jobs.control_requests import close_requests
from backend.jobs.lifecycle import advance
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.outbox import enqueue


def begin_attempt(
    job: Job, *, now: datetime, actor: str = "scheduler", reason: str = "", message: str = ""
) -> JobAttempt:
    """A locked job, queued (with fresh reservations) or recovering (with those it holds), gets its next attempt."""
    n, fence = job.num_attempts + 1, job.fence + 1
    point = resume_point(job)
    resume_from, resume_step = (point.uri, point.step) if point else ("", 0)
    close_requests(job.pk, now=now)
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
        data={"attempt": n, "fence": fence, "resume_step": resume_step},
        fence=fence,
        num_attempts=n,
        answered=0,
    )
    attempt = JobAttempt.objects.create(
        job=job,
        n=n,
        fence=fence,
        submission_id=f"{job.pk}-{n}-{fence}",
        token_sha256=token_digest(attempt_token(job.pk, n, fence)),
        resume_from=resume_from,
        resume_step=resume_step,
        created_at=now,
    )
    enqueue("launch", job.pk, now)
    return attempt
