"""The writes of reconciliation. Each function runs inside the caller's transaction, after the lease was proved.

Invariant: a job is changed only if it is still in the state, row version and attempt in which it was judged, and its
driver has not been heard of since; a heartbeat saves no driver whose loop does not turn, or whose time to end is over.
What then becomes of the job is said in `jobs.attempts.ending`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from backend.jobs.attempts import ending
from backend.jobs.lifecycle import locked_job, record_event
from backend.jobs.models import Job, JobAttempt
from backend.jobs.outbox import enqueue
from backend.reconcile.verdicts import STALL_DEADLINE_S, Verdict, stands_still
from backend.reconcile.views import Held

ACTOR = "reconcile"
SAME_ATTEMPT = ("pk", "submitted_at")
NOT_MOVED = (*SAME_ATTEMPT, "moved_at")
NOT_HEARD = (*NOT_MOVED, "last_seen_at")


class JobMovedOn(RuntimeError):
    """The job is no longer as it was judged; the next round looks again."""


def note_alive(held: Held, now: datetime) -> None:
    """Ray's word that it lives counts like the driver's own."""
    assert held.attempt is not None
    JobAttempt.objects.filter(pk=held.attempt.pk, ended_at__isnull=True).update(last_seen_at=now)


def note_stalled(held: Held, ray_says: str, now: datetime) -> None:
    job, still_s = _unchanged(held, NOT_MOVED), held.view.still_s
    Job.objects.filter(pk=job.pk).update(stalled_since=now - timedelta(seconds=still_s))
    message = (
        f"Its driver has not moved for {still_s:.0f} s (Ray: {ray_says}). If it stays so for "
        f"{STALL_DEADLINE_S + held.view.size_adds_s:.0f} s, the attempt is ended and another one goes on."
    )
    record_event(job, "stalled", actor=ACTOR, now=now, reason="driver_stands_still", message=message)


def confirm_end(held: Held, verdict: Verdict, ray_says: str, now: datetime) -> None:
    """Before a submission is stopped. That a driver stands still is on record before its driver is ended for it."""
    job = _unchanged(held, NOT_MOVED if verdict is Verdict.END_STALLED else SAME_ATTEMPT)
    if verdict is Verdict.END_STALLED and job.stalled_since is None:
        note_stalled(held, ray_says, now)


def note_moving(held: Held, now: datetime) -> None:
    job = _unchanged(held)
    Job.objects.filter(pk=job.pk).update(stalled_since=None)
    record_event(job, "moves_again", actor=ACTOR, now=now, message="Its driver moves again.")


def launch_again(held: Held, now: datetime) -> None:
    enqueue("launch", _unchanged(held).pk, now)


def run_out_of_time(held: Held, now: datetime) -> None:
    ending.run_out_of_time(_unchanged(held), held.attempt, actor=ACTOR, now=now)


def lose_attempt(held: Held, ray_says: str, log_tail: str, now: datetime) -> None:
    job, attempt = _unchanged(held), _attempt_of(held)
    why = "ended without a word from its driver"
    if stands_still(held.view, STALL_DEADLINE_S):
        why = f"was ended, since its driver had not moved for {held.view.still_s:.0f} s"
    message = f"Attempt {attempt.n} {why} (Ray: {ray_says})."
    ending.end_unreported(job, attempt, outcome=ending.LOST, message=message, log_tail=log_tail, actor=ACTOR, now=now)


def fail_start(held: Held, ray_says: str, log_tail: str, now: datetime) -> None:
    job, attempt = _unchanged(held), _attempt_of(held)
    message = f"Attempt {attempt.n} was not ready in time (Ray: {ray_says})."
    ending.end_unreported(
        job, attempt, outcome=ending.START_FAILED, message=message, log_tail=log_tail, actor=ACTOR, now=now
    )


def next_attempt(held: Held, now: datetime) -> None:
    ending.retry_after_last(_unchanged(held), actor=ACTOR, now=now)


def land_pause(held: Held, ray_says: str, now: datetime) -> None:
    """Without the engine's last word."""
    job = _unchanged(held)
    enqueue("stop", job.pk, now)
    because = "" if held.attempt is None else f"The engine let go without a word (Ray: {ray_says})."
    ending.land(job, actor=ACTOR, now=now, because=because)


def finish(held: Held, now: datetime) -> None:
    ending.end_stopped(_unchanged(held), actor=ACTOR, now=now)


def _attempt_of(held: Held) -> JobAttempt:
    assert held.attempt is not None
    return held.attempt


def _unchanged(held: Held, proofs: Sequence[str] = NOT_HEARD) -> Job:
    """The job, locked, and still what was judged. `proofs`: fields of its live attempt."""
    job = locked_job(held.job.pk)
    if (job.state, job.version) != (held.job.state, held.job.version):
        raise JobMovedOn(f"{held.job.state} is {job.state}")
    live = job.attempts.filter(ended_at__isnull=True).values_list(*proofs).first()
    judged = held.attempt and tuple(getattr(held.attempt, proof) for proof in proofs)
    if live != judged:
        raise JobMovedOn("its driver was heard of")
    return job
