"""The end of an attempt, and what becomes of its job: decided here, whoever noticed it.

    its driver says so (ingest)       end_as_told       ──▶ where the job was sent | paused | succeeded | failed
                                                         └─▶ recovering, of a failure that may be tried again
    nobody hears of it (reconcile)    end_unheard       ──▶ go_on: another attempt, at once or after a wait | failed
    it gave itself up (reconcile)     go_on_after_last  ──▶ go_on
    it was stopped (reconcile)        end_stopped, land ──▶ where the job was sent
    it ran too long (reconcile)       run_out_of_time   ──▶ stopping, on its way to failed
    it cannot be begun (outbox)       end_unlaunchable  ──▶ failed

Invariants:
- everything happens in the caller's transaction, under the job's lock;
- a job that was sent elsewhere (stopping, pausing) lands where its target says, whatever its attempt ended with;
- a failed attempt is followed by another from the newest checkpoint while its class of failure has tries left (at once
  on the devices that the job holds, later from the line and after a wait), else by `failed`;
- what was seen of a failed attempt is kept in the transaction that gives it up.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.attempts.evidence import scrubbed
from backend.jobs.attempts.failures import RETRIES, next_try, not_before, note_failure
from backend.jobs.attempts.resume_points import resume_point
from backend.jobs.control_requests import ask_driver
from backend.jobs.lifecycle import advance
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.outbox import enqueue

LOST: Final = "lost"
START_FAILED: Final = "start_failed"
CLASS_OF_SILENCE: Final[Mapping[str, str]] = {LOST: "infrastructure", START_FAILED: "capacity"}
PREEMPTED: Final = "preempted"
KILLED: Final = "killed"
"""By somebody, without waiting for its engine."""
NOT_UNDERSTOOD: Final = "This release does not understand the job's spec any more; submit it again."


def end_as_told(
    job: Job, attempt: JobAttempt, *, outcome: str, failure_class: str, message: str, now: datetime
) -> None:
    """By the driver's last word. `failure_class` is empty of what did not fail."""
    actor = f"engine:{attempt.n}"
    if failure_class:
        attempt.refresh_from_db(fields=["acked_seq", "last_seen_at"])
        judged = job.failure_class if job.state == JobState.STOPPING else ""
        note_failure(job, attempt, judged or failure_class, exit_reason=message)
        enqueue("evidence", job.pk, now)  # the log's last lines are with Ray
    if job.state == JobState.STOPPING:
        target = JobState(job.target_state or outcome)
        advance(job, target, actor=actor, now=now, reason=job.reason, message=message or job.message)
    elif outcome == "paused" or (job.state == JobState.PAUSING and failure_class in RETRIES):
        _land_as_told(job, message, actor, now)
    elif failure_class in RETRIES:
        _give_itself_up(job, attempt, message, actor, now)
    else:
        _end(job, JobState(outcome), "engine_finished", message, actor, now, failure_class=failure_class)


def end_unheard(
    job: Job, attempt: JobAttempt, *, outcome: str, message: str, log_tail: str, actor: str, now: datetime
) -> None:
    """Without the driver's last word: it was lost, or never ready."""
    failure_class = CLASS_OF_SILENCE[outcome]
    note_failure(job, attempt, failure_class, exit_reason=message, log_tail=log_tail)
    said = "\n".join([message, scrubbed(log_tail)]).strip()
    JobAttempt.objects.filter(pk=attempt.pk).update(ended_at=now, outcome=outcome, message=said)
    if job.state != JobState.RECOVERING:
        advance(job, JobState.RECOVERING, actor=actor, now=now, reason=f"driver_{outcome}", message=message)
    go_on(job, failure_class, message, actor=actor, now=now)
    enqueue("stop", job.pk, now)  # what Ray called over is over; what it had forgotten may come back


def go_on_after_last(job: Job, *, actor: str, now: datetime) -> None:
    """Of a job whose driver gave its attempt up itself."""
    last = job.attempts.order_by("-n").first()
    failure_class = (last.failure_class if last else "") or "infrastructure"
    go_on(job, failure_class, job.message or "The last attempt ended by a fault.", actor=actor, now=now)


def go_on(job: Job, failure_class: str, message: str, *, actor: str, now: datetime) -> None:
    """A recovering job: the next attempt, or `failed` when there have been enough."""
    following = next_try(job, failure_class)
    if not following.is_left:
        message = f"{message} It was attempt {following.tried} of {following.tries} in a row."
        _end(job, JobState.FAILED, "attempts_used_up", message, actor, now, failure_class=failure_class)
        return
    point = resume_point(job)
    message = f"{message} Going on {f'after step {point.step}' if point else 'from the beginning'}."
    if following.backoff_s is None:
        begin_attempt(job, now=now, actor=actor, reason="driver_lost", message=message)
        return
    advance(
        job,
        JobState.QUEUED,
        actor=actor,
        now=now,
        reason="backoff",
        message=f"{message} It waits {following.backoff_s:.0f} s first.",
        phase="requeued",
        data={"backoff_s": following.backoff_s, "tried": following.tried, "tries": following.tries},
        not_before=not_before(now, following.backoff_s),
    )


def end_stopped(job: Job, *, actor: str, now: datetime) -> None:
    """A stopping job whose submission is over, or past its last deadline: it lands where it was sent."""
    enqueue("stop", job.pk, now)
    target = JobState(job.target_state or JobState.CANCELLED)
    message = job.message if target == JobState.FAILED else "The engine let go without saying how it ended."
    advance(job, target, actor=actor, now=now, reason=job.reason, message=message)


def end_unlaunchable(job: Job, attempt: JobAttempt, message: str, *, now: datetime) -> None:
    """There is no order that the engine could be given, and none would be at another attempt."""
    note_failure(job, attempt, "config", exit_reason=message)
    JobAttempt.objects.filter(pk=attempt.pk).update(ended_at=now, outcome="failed", message=message)
    _end(job, JobState.FAILED, "invalid", message, "launcher", now, failure_class="config")


def run_out_of_time(job: Job, attempt: JobAttempt | None, *, actor: str, now: datetime) -> None:
    ask_driver(job, "cancel", now=now)
    message = f"The job ran longer than its max_runtime_s of {job.max_runtime_s}."
    if attempt is not None:
        note_failure(job, attempt, "timeout", exit_reason=message)
    _begin_to_stop(job, JobState.FAILED, "max_runtime", message, actor, now, failure_class="timeout")


def land(job: Job, *, actor: str, now: datetime, because: str = "") -> None:
    """The last move of a pause: devices are free, and what will be trained again is said."""
    point = resume_point(job)
    step = point.step if point else 0
    lost = max(0, job.step - step)
    where = f"Goes on after step {step}." if point else "Begins at the beginning."
    if job.only_evaluates:
        where = "The evaluation begins again."
    again = f" {lost} {'step' if lost == 1 else 'steps'} will be trained again." if lost else ""
    advance(
        job,
        landing_of(job),
        actor=actor,
        now=now,
        reason=job.reason,
        message=f"{because} {where}{again}".strip(),
        data={"checkpoint": point.checkpoint if point else None, "resume_step": step, "lost_steps": lost},
    )


def landing_of(job: Job) -> JobState:
    """Of a pausing job. A preemption leads back into the line, wherever it started."""
    if job.target_state:
        return JobState(job.target_state)
    return JobState.QUEUED if job.reason == PREEMPTED else JobState.PAUSED


def _land_as_told(job: Job, message: str, actor: str, now: datetime) -> None:
    if job.state != JobState.PAUSING:  # nobody asked: the engine pauses by itself
        told: dict[str, Any] = {"reason": "engine", "message": message, "phase": "draining"}
        advance(job, JobState.PAUSING, actor=actor, now=now, target_state=JobState.PAUSED, **told)
    land(job, actor=actor, now=now, because=message)


def _give_itself_up(job: Job, attempt: JobAttempt, message: str, actor: str, now: datetime) -> None:
    """Reconciliation goes on from here, at its next round: `go_on_after_last`."""
    JobAttempt.objects.filter(pk=attempt.pk).update(ended_at=now, outcome="failed", message=message)
    if job.state != JobState.RECOVERING:
        advance(job, JobState.RECOVERING, actor=actor, now=now, reason="engine_finished", message=message)


def _end(job: Job, to: JobState, reason: str, message: str, actor: str, now: datetime, *, failure_class: str) -> None:
    _begin_to_stop(job, to, reason, message, actor, now, failure_class=failure_class)
    advance(job, to, actor=actor, now=now, reason=reason, message=message)


def _begin_to_stop(
    job: Job, target: JobState, reason: str, message: str, actor: str, now: datetime, *, failure_class: str
) -> None:
    told: dict[str, Any] = {"reason": reason, "message": message, "failure_class": failure_class}
    advance(job, JobState.STOPPING, actor=actor, now=now, target_state=target, **told)
