"""What reconciliation writes. Each function runs inside the caller's transaction, after the lease was proved.

Invariants:
- a job is changed only if it is still in the state, row version and attempt in which it was judged, and its driver
  has not been heard of since;
- a lost attempt is followed by another from the newest checkpoint while there are attempts left, else by
  `failed`/`infrastructure`.
"""

import re
from datetime import datetime

from backend.checkpoints.selectors import newest_checkpoint
from backend.ids import new_id
from backend.jobs.attempts import begin_attempt
from backend.jobs.lifecycle import advance, locked_job
from backend.jobs.models import Job, JobAttempt, JobRequest, JobState
from backend.jobs.outbox import enqueue
from backend.reconcile.views import Held

ACTOR = "reconcile"
LOST = "lost"
MOST_ATTEMPTS = 3

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class JobMovedOn(RuntimeError):
    """The job is no longer as it was judged; the next round looks again."""


def note_alive(held: Held, now: datetime) -> None:
    """Ray's word that it lives counts like the driver's own."""
    assert held.attempt is not None
    JobAttempt.objects.filter(pk=held.attempt.pk, ended_at__isnull=True).update(last_seen_at=now)


def launch_again(held: Held, now: datetime) -> None:
    enqueue("launch", _unchanged(held).pk, now)


def run_out_of_time(held: Held, now: datetime) -> None:
    job = _unchanged(held)
    if not job.requests.filter(kind="cancel", acknowledged_at__isnull=True).exists():
        JobRequest.objects.create(id=new_id("req"), job=job, kind="cancel", created_at=now)
    advance(
        job,
        JobState.STOPPING,
        actor=ACTOR,
        now=now,
        reason="max_runtime",
        message=f"The job ran longer than its max_runtime_s of {held.view.max_runtime_s:.0f}.",
        target_state=JobState.FAILED,
        failure_class="timeout",
    )


def lose_attempt(held: Held, ray_says: str, last_words: str, now: datetime) -> None:
    job, attempt = _unchanged(held), held.attempt
    assert attempt is not None
    message = f"Attempt {attempt.n} ended without a word from its driver (Ray: {ray_says})."
    JobAttempt.objects.filter(pk=attempt.pk).update(
        ended_at=now, outcome=LOST, message="\n".join([message, _UNPRINTABLE.sub("", last_words)]).strip()
    )
    if job.state != JobState.RECOVERING:
        advance(job, JobState.RECOVERING, actor=ACTOR, now=now, reason="driver_lost", message=message)
    _go_on(job, message, now)
    enqueue("stop", job.pk, now)  # what Ray called over is over; what it had forgotten may come back


def next_attempt(held: Held, now: datetime) -> None:
    """The driver itself gave its attempt up as a fault of the infrastructure."""
    job = _unchanged(held)
    _go_on(job, job.message or "The last attempt ended by a fault.", now)


def finish(held: Held, now: datetime) -> None:
    """The submission is over, or past its last deadline: the job lands where it was sent."""
    job = _unchanged(held)
    enqueue("stop", job.pk, now)
    advance(
        job,
        JobState(job.target_state or JobState.CANCELLED),
        actor=ACTOR,
        now=now,
        reason=job.reason,
        message="The engine let go without saying how it ended."
        if job.target_state != JobState.FAILED
        else job.message,
    )


def _go_on(job: Job, message: str, now: datetime) -> None:
    if job.num_attempts < MOST_ATTEMPTS:
        checkpoint = newest_checkpoint(job)
        begin_attempt(
            job,
            now=now,
            resume_from=checkpoint.uri if checkpoint else "",
            actor=ACTOR,
            reason="driver_lost",
            message=f"{message} Going on from {f'step {checkpoint.step}' if checkpoint else 'the beginning'}.",
        )
        return
    final = f"{message} It was attempt {job.num_attempts} of {MOST_ATTEMPTS}."
    advance(
        job,
        JobState.STOPPING,
        actor=ACTOR,
        now=now,
        reason="attempts_used_up",
        message=final,
        target_state=JobState.FAILED,
        failure_class="infrastructure",
    )
    advance(job, JobState.FAILED, actor=ACTOR, now=now, reason="attempts_used_up", message=final)


def _unchanged(held: Held) -> Job:
    """The job, locked, and still what was judged."""
    job = locked_job(held.job.pk)
    if (job.state, job.version) != (held.job.state, held.job.version):
        raise JobMovedOn(f"{held.job.state} is {job.state}")
    live = job.attempts.filter(ended_at__isnull=True).values_list("pk", "last_seen_at", "submitted_at").first()
    judged = held.attempt and (held.attempt.pk, held.attempt.last_seen_at, held.attempt.submitted_at)
    if live != judged:
        raise JobMovedOn("its driver was heard of")
    return job
