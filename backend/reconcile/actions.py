"""The writes of reconciliation. Each function runs in the caller's transaction, after the lease was proved.

Invariant: a job is changed only if it still has the state, row version and attempt that were judged, and its driver has
been silent since. A heartbeat does not save a driver whose loop is stuck or whose time to end is over. What happens to
the job next is decided in `jobs.attempts.ending`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from backend.jobs.attempts import ending
from backend.jobs.lifecycle import locked_job, record_event
from backend.jobs.models import Job, JobAttempt
from backend.jobs.outbox import enqueue
from backend.reconcile.judging import STALL_DEADLINE_S, Action, is_stuck
from backend.reconcile.views import Held

ACTOR = "reconcile"
SAME_ATTEMPT = ("pk", "submitted_at")
NOT_MOVED = (*SAME_ATTEMPT, "moved_at")
NOT_HEARD = (*NOT_MOVED, "last_seen_at")


class JobMovedOn(RuntimeError):
    """The job changed after it was judged; the next round judges it again."""


def note_alive(held: Held, now: datetime) -> None:
    """Ray's report that the driver runs counts like a heartbeat."""
    assert held.attempt is not None
    JobAttempt.objects.filter(pk=held.attempt.pk, ended_at__isnull=True).update(last_seen_at=now)


def note_stalled(held: Held, ray_status: str, now: datetime) -> None:
    job, still_s = _unchanged(held, NOT_MOVED), held.view.still_s
    Job.objects.filter(pk=job.pk).update(stalled_since=now - timedelta(seconds=still_s))
    message = (
        f"The driver has not moved for {still_s:.0f} s (Ray: {ray_status}). If it does not move for "
        f"{STALL_DEADLINE_S + held.view.size_extra_s:.0f} s, its attempt ends and another one starts."
    )
    record_event(job, "stalled", actor=ACTOR, now=now, reason="driver_stands_still", message=message)


def confirm_end(held: Held, action: Action, ray_status: str, now: datetime) -> None:
    """Runs before a submission is stopped. A stall is on record before the driver is ended for it."""
    job = _unchanged(held, NOT_MOVED if action is Action.END_STALLED else SAME_ATTEMPT)
    if action is Action.END_STALLED and job.stalled_since is None:
        note_stalled(held, ray_status, now)


def note_moving(held: Held, now: datetime) -> None:
    job = _unchanged(held)
    Job.objects.filter(pk=job.pk).update(stalled_since=None)
    record_event(job, "moves_again", actor=ACTOR, now=now, message="The driver moves again.")


def launch_again(held: Held, now: datetime) -> None:
    enqueue("launch", _unchanged(held).pk, now)


def run_out_of_time(held: Held, now: datetime) -> None:
    ending.run_out_of_time(_unchanged(held), held.attempt, actor=ACTOR, now=now)


def lose_attempt(held: Held, ray_status: str, log_tail: str, now: datetime) -> None:
    job, attempt = _unchanged(held), _attempt_of(held)
    cause = "ended without a report from its driver"
    if is_stuck(held.view, STALL_DEADLINE_S):
        cause = f"was ended because its driver had not moved for {held.view.still_s:.0f} s"
    message = f"Attempt {attempt.n} {cause} (Ray: {ray_status})."
    ending.end_unreported(job, attempt, outcome=ending.LOST, message=message, log_tail=log_tail, actor=ACTOR, now=now)


def fail_start(held: Held, ray_status: str, log_tail: str, now: datetime) -> None:
    job, attempt = _unchanged(held), _attempt_of(held)
    message = f"Attempt {attempt.n} was not ready in time (Ray: {ray_status})."
    ending.end_unreported(
        job, attempt, outcome=ending.START_FAILED, message=message, log_tail=log_tail, actor=ACTOR, now=now
    )


def next_attempt(held: Held, now: datetime) -> None:
    ending.retry_after_last(_unchanged(held), actor=ACTOR, now=now)


def land_pause(held: Held, ray_status: str, now: datetime) -> None:
    """Ends a pause without the engine's last fact."""
    job = _unchanged(held)
    enqueue("stop", job.pk, now)
    because = "" if held.attempt is None else f"The engine ended without a report (Ray: {ray_status})."
    ending.land(job, actor=ACTOR, now=now, because=because)


def finish(held: Held, now: datetime) -> None:
    ending.end_stopped(_unchanged(held), actor=ACTOR, now=now)


def _attempt_of(held: Held) -> JobAttempt:
    assert held.attempt is not None
    return held.attempt


def _unchanged(held: Held, proofs: Sequence[str] = NOT_HEARD) -> Job:
    """The locked job, if unchanged since it was judged. `proofs`: fields of its live attempt to compare."""
    job = locked_job(held.job.pk)
    if (job.state, job.version) != (held.job.state, held.job.version):
        raise JobMovedOn(f"{held.job.state} is {job.state}")
    live = job.attempts.filter(ended_at__isnull=True).values_list(*proofs).first()
    expected = held.attempt and tuple(getattr(held.attempt, proof) for proof in proofs)
    if live != expected:
        raise JobMovedOn("its driver has sent something")
    return job
