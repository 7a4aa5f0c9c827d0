"""What reconciliation writes. Each function runs inside the caller's transaction, after the lease was proved.

Invariants:
- a job is changed only if it is still in the state, row version and attempt in which it was judged, and its driver
  has not been heard of since;
- a lost attempt is followed by another from the newest checkpoint while its class of failure has tries left (at once
  on the devices that the job holds, later from the line and after a wait), else by `failed`.
"""

from datetime import datetime

from backend.ids import new_id
from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.attempts.evidence import scrubbed
from backend.jobs.attempts.failures import next_try, not_before, note_failure
from backend.jobs.attempts.resume_points import resume_point
from backend.jobs.control.pausing import land
from backend.jobs.lifecycle import advance, locked_job
from backend.jobs.models import Job, JobAttempt, JobRequest, JobState
from backend.jobs.outbox import enqueue
from backend.reconcile.views import Held

ACTOR = "reconcile"
LOST = "lost"
START_FAILED = "start_failed"


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
    message = f"The job ran longer than its max_runtime_s of {held.view.max_runtime_s:.0f}."
    if held.attempt is not None:
        note_failure(job, held.attempt, "timeout", exit_reason=message)
    advance(
        job,
        JobState.STOPPING,
        actor=ACTOR,
        now=now,
        reason="max_runtime",
        message=message,
        target_state=JobState.FAILED,
        failure_class="timeout",
    )


def lose_attempt(held: Held, ray_says: str, last_words: str, now: datetime) -> None:
    message = f"Attempt {_attempt_of(held).n} ended without a word from its driver (Ray: {ray_says})."
    _give_up(held, message, LOST, "infrastructure", last_words, now)


def fail_start(held: Held, ray_says: str, last_words: str, now: datetime) -> None:
    message = f"Attempt {_attempt_of(held).n} was not ready in time (Ray: {ray_says})."
    _give_up(held, message, START_FAILED, "capacity", last_words, now)


def next_attempt(held: Held, now: datetime) -> None:
    """The driver itself gave its attempt up."""
    job = _unchanged(held)
    last = job.attempts.order_by("-n").first()
    failure_class = (last.failure_class if last else "") or "infrastructure"
    _go_on(job, failure_class, job.message or "The last attempt ended by a fault.", now)


def land_pause(held: Held, ray_says: str, now: datetime) -> None:
    """Without the engine's last word."""
    job = _unchanged(held)
    enqueue("stop", job.pk, now)
    because = "" if held.attempt is None else f"The engine let go without a word (Ray: {ray_says})."
    land(job, actor=ACTOR, now=now, because=because)


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


def _give_up(held: Held, message: str, outcome: str, failure_class: str, last_words: str, now: datetime) -> None:
    job, attempt = _unchanged(held), _attempt_of(held)
    note_failure(job, attempt, failure_class, exit_reason=message, log_tail=last_words)
    JobAttempt.objects.filter(pk=attempt.pk).update(
        ended_at=now, outcome=outcome, message="\n".join([message, scrubbed(last_words)]).strip()
    )
    if job.state != JobState.RECOVERING:
        advance(job, JobState.RECOVERING, actor=ACTOR, now=now, reason=f"driver_{outcome}", message=message)
    _go_on(job, failure_class, message, now)
    enqueue("stop", job.pk, now)  # what Ray called over is over; what it had forgotten may come back


def _go_on(job: Job, failure_class: str, message: str, now: datetime) -> None:
    following = next_try(job, failure_class)
    if not following.is_left:
        _fail(job, failure_class, f"{message} It was attempt {following.tried} of {following.tries} in a row.", now)
        return
    point = resume_point(job)
    message = f"{message} Going on {f'after step {point.step}' if point else 'from the beginning'}."
    if following.backoff_s is None:
        begin_attempt(job, now=now, actor=ACTOR, reason="driver_lost", message=message)
        return
    advance(
        job,
        JobState.QUEUED,
        actor=ACTOR,
        now=now,
        reason="backoff",
        message=f"{message} It waits {following.backoff_s:.0f} s first.",
        phase="requeued",
        data={"backoff_s": following.backoff_s, "tried": following.tried, "tries": following.tries},
        not_before=not_before(now, following.backoff_s),
    )


def _fail(job: Job, failure_class: str, message: str, now: datetime) -> None:
    advance(
        job,
        JobState.STOPPING,
        actor=ACTOR,
        now=now,
        reason="attempts_used_up",
        message=message,
        target_state=JobState.FAILED,
        failure_class=failure_class,
    )
    advance(job, JobState.FAILED, actor=ACTOR, now=now, reason="attempts_used_up", message=message)


def _attempt_of(held: Held) -> JobAttempt:
    assert held.attempt is not None
    return held.attempt


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
