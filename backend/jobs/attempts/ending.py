"""Ends attempts and decides what happens to their job, whichever process noticed the end.

    the driver reports its end (ingest)   end_as_reported     ──▶ the job's target | paused | succeeded | failed
                                                               └─▶ recovering, if the failure may be retried
    the driver went silent (reconcile)    end_unreported      ──▶ retry_or_fail: a new attempt, now or later | failed
    it ended with a fault (reconcile)     retry_after_last    ──▶ retry_or_fail
    it was stopped (reconcile)            end_stopped, land   ──▶ the job's target
    it ran too long (reconcile)           run_out_of_time     ──▶ stopping, on its way to failed
    it cannot be launched (outbox)        end_unlaunchable    ──▶ failed

Invariants:
- everything happens in the caller's transaction, under the job's lock;
- a stopping or pausing job ends in its target state, however its attempt ended;
- a failed attempt is followed by another from the newest checkpoint while its failure class has tries left (at once
  on the devices that the job holds, later from the queue and after a wait), otherwise by `failed`;
- evidence of a failed attempt is stored in the transaction that gives it up.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.attempts.evidence import scrub
from backend.jobs.attempts.failures import RETRIES, next_try, not_before, note_failure
from backend.jobs.attempts.resume_points import resume_point
from backend.jobs.control_requests import ask_driver
from backend.jobs.lifecycle import change_state
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.outbox import enqueue

LOST: Final = "lost"
START_FAILED: Final = "start_failed"
CLASS_OF_SILENCE: Final[Mapping[str, str]] = {LOST: "infrastructure", START_FAILED: "capacity"}
PREEMPTED: Final = "preempted"
KILLED: Final = "killed"
"""By a user, without waiting for the engine."""
NOT_UNDERSTOOD: Final = "This release cannot read the job's spec. Submit the job again."


def end_as_reported(
    job: Job, attempt: JobAttempt, *, outcome: str, failure_class: str, message: str, now: datetime
) -> None:
    """Ends an attempt as its driver's last fact reports. `failure_class` is empty if it did not fail."""
    actor = f"engine:{attempt.n}"
    if failure_class:
        attempt.refresh_from_db(fields=["acked_seq", "last_seen_at"])
        own_class = job.failure_class if job.state == JobState.STOPPING else ""
        note_failure(job, attempt, own_class or failure_class, exit_reason=message)
        enqueue("evidence", job.pk, now)  # Ray has the last log lines
    if job.state == JobState.STOPPING:
        target = JobState(job.target_state or outcome)
        change_state(job, target, actor=actor, now=now, reason=job.reason, message=message or job.message)
    elif outcome == "paused" or (job.state == JobState.PAUSING and failure_class in RETRIES):
        _land_as_reported(job, message, actor, now)
    elif failure_class in RETRIES:
        _give_up(job, attempt, message, actor, now)
    else:
        _end(job, JobState(outcome), "engine_finished", message, actor, now, failure_class=failure_class)


def end_unreported(
    job: Job, attempt: JobAttempt, *, outcome: str, message: str, log_tail: str, actor: str, now: datetime
) -> None:
    """Ends an attempt without its driver's last fact: it was lost, or never became ready."""
    failure_class = CLASS_OF_SILENCE[outcome]
    note_failure(job, attempt, failure_class, exit_reason=message, log_tail=log_tail)
    text = "\n".join([message, scrub(log_tail)]).strip()
    JobAttempt.objects.filter(pk=attempt.pk).update(ended_at=now, outcome=outcome, message=text)
    if job.state != JobState.RECOVERING:
        change_state(job, JobState.RECOVERING, actor=actor, now=now, reason=f"driver_{outcome}", message=message)
    retry_or_fail(job, failure_class, message, actor=actor, now=now)
    enqueue("stop", job.pk, now)  # no-op if Ray reports it ended; a submission that Ray lost may come back


def retry_after_last(job: Job, *, actor: str, now: datetime) -> None:
    """Retries a job whose driver ended its attempt with a fault."""
    last = job.attempts.order_by("-n").first()
    failure_class = (last.failure_class if last else "") or "infrastructure"
    retry_or_fail(job, failure_class, job.message or "The last attempt ended with a fault.", actor=actor, now=now)


def retry_or_fail(job: Job, failure_class: str, message: str, *, actor: str, now: datetime) -> None:
    """Begins a recovering job's next attempt, or fails the job when its tries are used up."""
    following = next_try(job, failure_class)
    if not following.is_left:
        message = f"{message} This was attempt {following.tried} of {following.tries} without progress."
        _end(job, JobState.FAILED, "attempts_used_up", message, actor, now, failure_class=failure_class)
        return
    point = resume_point(job)
    message = f"{message} {f'Resuming after step {point.step}' if point else 'Restarting from the beginning'}."
    if following.backoff_s is None:
        begin_attempt(job, now=now, actor=actor, reason="driver_lost", message=message)
        return
    change_state(
        job,
        JobState.QUEUED,
        actor=actor,
        now=now,
        reason="backoff",
        message=f"{message} The next attempt starts in {following.backoff_s:.0f} s at the earliest.",
        phase="requeued",
        data={"backoff_s": following.backoff_s, "tried": following.tried, "tries": following.tries},
        not_before=not_before(now, following.backoff_s),
    )


def end_stopped(job: Job, *, actor: str, now: datetime) -> None:
    """Ends a stopping job whose submission has ended or exceeded its last deadline, in the job's target state."""
    enqueue("stop", job.pk, now)
    target = JobState(job.target_state or JobState.CANCELLED)
    message = job.message if target == JobState.FAILED else "The engine stopped without reporting an outcome."
    change_state(job, target, actor=actor, now=now, reason=job.reason, message=message)


def end_unlaunchable(job: Job, attempt: JobAttempt, message: str, *, now: datetime) -> None:
    """Fails a job for which no valid order exists, in this or any later attempt."""
    note_failure(job, attempt, "config", exit_reason=message)
    JobAttempt.objects.filter(pk=attempt.pk).update(ended_at=now, outcome="failed", message=message)
    _end(job, JobState.FAILED, "invalid", message, "launcher", now, failure_class="config")


def run_out_of_time(job: Job, attempt: JobAttempt | None, *, actor: str, now: datetime) -> None:
    ask_driver(job, "cancel", now=now)
    message = f"The job exceeded its max_runtime_s of {job.max_runtime_s}."
    if attempt is not None:
        note_failure(job, attempt, "timeout", exit_reason=message)
    _begin_to_stop(job, JobState.FAILED, "max_runtime", message, actor, now, failure_class="timeout")


def land(job: Job, *, actor: str, now: datetime, because: str = "") -> None:
    """Ends a pause: devices are free, and the message names the steps that will be trained again."""
    point = resume_point(job)
    step = point.step if point else 0
    lost = max(0, job.step - step)
    where = f"Will resume after step {step}." if point else "Will start from the beginning."
    if job.only_evaluates:
        where = "The evaluation will start over."
    again = f" {lost} {'step' if lost == 1 else 'steps'} will be trained again." if lost else ""
    change_state(
        job,
        state_after_pause(job),
        actor=actor,
        now=now,
        reason=job.reason,
        message=f"{because} {where}{again}".strip(),
        data={"checkpoint": point.checkpoint if point else None, "resume_step": step, "lost_steps": lost},
    )


def state_after_pause(job: Job) -> JobState:
    """Target state of a pausing job. A preempted job returns to the queue, wherever it started."""
    if job.target_state:
        return JobState(job.target_state)
    return JobState.QUEUED if job.reason == PREEMPTED else JobState.PAUSED


def _land_as_reported(job: Job, message: str, actor: str, now: datetime) -> None:
    if job.state != JobState.PAUSING:  # no request: the engine pauses by itself
        cause: dict[str, Any] = {"reason": "engine", "message": message, "phase": "draining"}
        change_state(job, JobState.PAUSING, actor=actor, now=now, target_state=JobState.PAUSED, **cause)
    land(job, actor=actor, now=now, because=message)


def _give_up(job: Job, attempt: JobAttempt, message: str, actor: str, now: datetime) -> None:
    """Reconciliation retries at its next round: `retry_after_last`."""
    JobAttempt.objects.filter(pk=attempt.pk).update(ended_at=now, outcome="failed", message=message)
    if job.state != JobState.RECOVERING:
        change_state(job, JobState.RECOVERING, actor=actor, now=now, reason="engine_finished", message=message)


def _end(job: Job, to: JobState, reason: str, message: str, actor: str, now: datetime, *, failure_class: str) -> None:
    _begin_to_stop(job, to, reason, message, actor, now, failure_class=failure_class)
    change_state(job, to, actor=actor, now=now, reason=reason, message=message)


def _begin_to_stop(
    job: Job, target: JobState, reason: str, message: str, actor: str, now: datetime, *, failure_class: str
) -> None:
    cause: dict[str, Any] = {"reason": reason, "message": message, "failure_class": failure_class}
    change_state(job, JobState.STOPPING, actor=actor, now=now, target_state=target, **cause)
