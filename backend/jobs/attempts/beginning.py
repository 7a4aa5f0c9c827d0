"""Beginning an attempt: the one way from waiting or recovering to starting.

Invariants:
- an attempt has a number and a fence of its own, each more than the last, and the fence no less than the generation:
  what was begun before the database was put back in time has another;
- one that the lost time has begun is not begun again: it is taken up under the fence that its driver has;
- an earlier attempt that had not ended is ended in the same transaction, and the engine is asked to stop it: from
  here on its fence is old and what it still sends has no effect;
- it goes on from the newest checkpoint, and an evaluation begins again; what was wanted of the attempt before is not
  wanted of this one;
- the launcher hears of it from the outbox, after commit; not of one that is taken up.
"""

from datetime import datetime

from backend.jobs.attempts.resume_points import resume_point
from backend.jobs.attempts.tokens import attempt_token, token_digest
from backend.jobs.control_requests import close_requests
from backend.jobs.generation.left_behind import begun_before, submission_id
from backend.jobs.generation.raising import present_generation
from backend.jobs.lifecycle import advance
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.outbox import enqueue


def begin_attempt(
    job: Job, *, now: datetime, actor: str = "scheduler", reason: str = "", message: str = ""
) -> JobAttempt:
    """A locked job, queued (with fresh reservations) or recovering (with those it holds), gets its next attempt."""
    n, generation = job.num_attempts + 1, present_generation()
    taken_up = begun_before(job, n, generation.number)
    fence = taken_up or max(job.fence + 1, generation.number)
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
        submission_id=submission_id(job.pk, n, fence, site=generation.site),
        token_sha256=token_digest(attempt_token(job.pk, n, fence)),
        resume_from=resume_from,
        resume_step=resume_step,
        created_at=now,
        submitted_at=now if taken_up else None,
    )
    if not taken_up:
        enqueue("launch", job.pk, now)
    return attempt
