"""Begins attempts: the only way from waiting or recovering to starting.

Invariants:
- each attempt has a number and a fence, both higher than any before, and a fence no lower than the generation: attempts
  begun before the database was restored have other fences;
- an attempt begun in the lost time is not begun again: it is adopted, with the fence that its driver has;
- an earlier attempt that had not ended is ended in the same transaction and stopped on the engine: from now
  on its fence is outdated and whatever it still sends has no effect;
- it resumes from the newest checkpoint, and an evaluation starts over; requests to the previous attempt do not carry
  over;
- the launcher gets an outbox message after commit, except for an adopted attempt.
"""

from datetime import datetime

from backend.jobs.attempts.resume_points import resume_point
from backend.jobs.attempts.tokens import attempt_token, token_digest
from backend.jobs.control_requests import close_requests
from backend.jobs.generation.left_behind import adoptable_fence, submission_id
from backend.jobs.generation.raising import present_generation
from backend.jobs.lifecycle import change_state
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.outbox import enqueue


def begin_attempt(
    job: Job, *, now: datetime, actor: str = "scheduler", reason: str = "", message: str = ""
) -> JobAttempt:
    """Begins the next attempt of a locked job, queued (with fresh reservations) or recovering (with those it holds)."""
    n, generation = job.num_attempts + 1, present_generation()
    adopted_fence = adoptable_fence(job, n, generation.number)
    fence = adopted_fence or max(job.fence + 1, generation.number)
    point = resume_point(job)
    resume_from, resume_step = (point.uri, point.step) if point else ("", 0)
    close_requests(job.pk, now=now)
    if job.attempts.filter(ended_at__isnull=True).update(ended_at=now, outcome="superseded"):
        enqueue("stop", job.pk, now)
    change_state(
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
        submitted_at=now if adopted_fence else None,
    )
    if not adopted_fence:
        enqueue("launch", job.pk, now)
    return attempt
