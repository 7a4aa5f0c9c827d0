"""Cancelling a job, which waits for its engine, and killing it, which does not.

Invariants:
- both are idempotent;
- cancelling a job that is already stopping does not change its target state.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from django.db import transaction

from backend.accounts.models import Role, Team
from backend.audit.services import record_action
from backend.errors import InvalidState
from backend.jobs.attempts.ending import KILLED
from backend.jobs.control_requests import ask_driver
from backend.jobs.lifecycle import LEGAL_MOVES, change_state, locked_job
from backend.jobs.models import HOLDING_STATES, Job, JobState
from backend.jobs.outbox import enqueue

MAY_KILL: Final = frozenset({Role.ADMIN, Role.OWNER})


def cancel_job(job_id: str, *, actor: str, now: datetime) -> tuple[Job, bool]:
    """Returns the job and whether this call changed anything.

    A job that holds no devices is cancelled at once. A running one moves to `stopping` and its driver gets a request;
    ingest (or reconcile's deadline) makes the last move. A job that is already stopping keeps its target state.
    """
    with transaction.atomic():
        job = locked_job(job_id)
        if job.state in {JobState.STOPPING, JobState.CANCELLED}:
            return job, False
        moves = LEGAL_MOVES[job.state]
        if JobState.CANCELLED in moves:
            change_state(
                job, JobState.CANCELLED, actor=actor, now=now, reason="user", message="Cancelled before it ran."
            )
        elif JobState.STOPPING in moves:
            _request_stop(job, actor=actor, now=now)
        else:
            raise InvalidState(
                f"The job has ended ({job.state}) and cannot be cancelled.",
                state=job.state,
                allowed=[str(move) for move in moves],
            )
        record_action(team_id=job.team_id, actor=actor, action="job.cancel", target=job.pk, now=now)
    return job, True


def cancel_many(team: Team, job_ids: Sequence[str], *, actor: str, now: datetime) -> list[tuple[str, str]]:
    """Returns each id with its result: cancelled, already, finished, not_found. Each job has its own transaction, so
    that a locked one does not block the others."""
    known = set(Job.objects.filter(team=team, pk__in=job_ids).values_list("pk", flat=True))
    return [(job_id, _cancel_one(job_id, actor, now) if job_id in known else "not_found") for job_id in job_ids]


def _cancel_one(job_id: str, actor: str, now: datetime) -> str:
    try:
        return "cancelled" if cancel_job(job_id, actor=actor, now=now)[1] else "already"
    except InvalidState:
        return "finished"


def kill_job(job_id: str, *, actor: str, now: datetime) -> tuple[Job, bool]:
    """Ends a job without waiting for its engine, if the engine does not stop. The attempt is fenced off at once and
    stopped by Ray; until then it may use devices that another job has been given."""
    with transaction.atomic():
        job = locked_job(job_id)
        if job.is_terminal:
            return job, False
        was, message = job.state, "Killed without waiting for its engine."
        if job.state in HOLDING_STATES:
            if job.state != JobState.STOPPING:
                target = JobState.CANCELLED
                change_state(job, JobState.STOPPING, actor=actor, now=now, reason=KILLED, target_state=target)
            enqueue("stop", job.pk, now)
        target = JobState(job.target_state or JobState.CANCELLED)
        change_state(job, target, actor=actor, now=now, reason=KILLED, message=message)
        record_action(team_id=job.team_id, actor=actor, action="job.kill", target=job.pk, now=now, data={"state": was})
    return job, True


def _request_stop(job: Job, *, actor: str, now: datetime) -> None:
    ask_driver(job, "cancel", now=now)
    change_state(
        job,
        JobState.STOPPING,
        actor=actor,
        now=now,
        reason="user",
        message="Waiting for the engine to stop.",
        target_state=JobState.CANCELLED,
    )
