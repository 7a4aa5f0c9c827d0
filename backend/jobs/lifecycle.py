"""The only writer of a job's state.

Invariants:
- every change is a legal move, made by compare-and-set on (state, version), and leaves exactly one event with
  `seq = last + 1` in the same transaction: no event, no change;
- a move to a state that holds no devices releases them, ends the attempt, closes open requests to its driver and
  triggers the scheduler, in that transaction;
- the job row is locked (`locked_job`) while its cursor moves, so cursors are committed in order.

 validating ──▶ queued ──▶ starting ──▶ running ◀──▶ recovering
     │          ▲ │  ▲        │  └─────────┬──────────────┤
     │          │ │  └────────┴────────────┼──────────────┘      (a failed start; a lost driver that was pausing)
     │   resume │ │                        ▼
     │          │ │ preempted, resumed pausing ──▶ paused
     │          │ └◀──────────────────────┘          │
     ▼          │                                    │
  failed        └────────────────────────────────────┘
 starting, running, recovering, pausing ──▶ stopping ──▶ succeeded | failed | cancelled
 validating, queued, paused ──▶ cancelled           queued, starting ──▶ failed
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings

from backend.jobs.control_requests import close_requests
from backend.jobs.models import HOLDING_STATES, TERMINAL_STATES, Job, JobEvent, JobState
from backend.jobs.outbox import Topic, enqueue, message_of, nudge_at_commit
from backend.jobs.row_batch import Statement, execute_batch, insert_of
from backend.pools.decision.decide import WaitingReason

S = JobState
LEGAL_MOVES: Mapping[str, frozenset[str]] = {
    S.VALIDATING: frozenset({S.QUEUED, S.FAILED, S.CANCELLED}),
    S.QUEUED: frozenset({S.STARTING, S.CANCELLED, S.FAILED}),
    S.STARTING: frozenset({S.RUNNING, S.RECOVERING, S.QUEUED, S.PAUSING, S.STOPPING, S.FAILED}),
    S.RUNNING: frozenset({S.RECOVERING, S.PAUSING, S.STOPPING}),
    S.RECOVERING: frozenset({S.STARTING, S.RUNNING, S.QUEUED, S.PAUSING, S.STOPPING}),
    S.PAUSING: frozenset({S.PAUSED, S.QUEUED, S.STOPPING}),
    S.PAUSED: frozenset({S.QUEUED, S.CANCELLED}),
    S.STOPPING: frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
LIVE_CHANNEL = "laminar_live"


class IllegalMove(RuntimeError):
    """The job cannot move from its state to the requested one."""


class LostRace(RuntimeError):
    """Another process changed the job between the read and the write."""


def locked_job(job_id: str) -> Job:
    """The job, locked until the transaction ends. Lock order everywhere: pool, then job, then the rest."""
    return Job.objects.select_for_update(of=("self",), no_key=True).get(pk=job_id)


def next_cursor(job: Job, *, count: int = 1) -> int:
    """Advances the job's cursor by `count`, announced to browsers at commit. Returns the new cursor."""
    job.cursor += count
    if Job.objects.filter(pk=job.pk, cursor=job.cursor - count).update(cursor=job.cursor) != 1:
        raise LostRace(f"cursor of {job.pk} changed concurrently; lock the job first")
    execute_batch([_notify_browsers(job)])
    return job.cursor


def _notify_browsers(job: Job) -> Statement:
    """Delivered at commit, and never after a rollback."""
    return "SELECT pg_notify(%s, %s)", [LIVE_CHANNEL, f"{job.team_id} {job.pk} {job.cursor}"]


def insert_job(job: Job, *, actor: str, now: datetime, data: Mapping[str, Any]) -> None:
    """Inserts a new job, its first event and the outbox message, in one trip: trips are most of a submission's cost.
    The job is invisible to others before the commit, so its row needs no lock."""
    job.cursor = 1
    about = {"actor": actor, "to_state": job.state, "data": dict(data)}
    event = JobEvent(job=job, seq=1, cursor=1, at=now, type="submitted", **about)
    topic: Topic = "schedule" if job.state == S.QUEUED else "validate"
    key = job.pool_id if job.state == S.QUEUED else job.pk
    call = message_of(topic, key, now)
    row = execute_batch([insert_of(job), insert_of(event), _notify_browsers(job), call])
    nudge_at_commit(row, topic, key)
    job._state.adding = False


def record_event(
    job: Job,
    type: str,
    *,
    actor: str,
    now: datetime,
    from_state: str = "",
    to_state: str = "",
    reason: str = "",
    message: str = "",
    data: Mapping[str, Any] | None = None,
    job_version: int | None = None,
) -> JobEvent:
    last = JobEvent.objects.filter(job=job).order_by("-seq").values_list("seq", flat=True).first() or 0
    return JobEvent.objects.create(
        job=job,
        seq=last + 1,
        cursor=next_cursor(job),
        at=now,
        type=type,
        actor=actor,
        from_state=from_state,
        to_state=to_state,
        job_version=job_version,
        reason=reason,
        message=message,
        data=dict(data or {}),
    )


def change_state(
    job: Job,
    to: JobState,
    *,
    actor: str,
    now: datetime,
    reason: str = "",
    message: str = "",
    phase: str = "",
    data: Mapping[str, Any] | None = None,
    **changes: Any,
) -> JobEvent:
    """Moves a locked job to another state. `changes` are further columns of the job, set in the same write.

    `reason` is the cause of the move. A queued job gets a reason of its own, from the scheduler's list.
    """
    source = job.state
    if to not in LEGAL_MOVES[source]:
        raise IllegalMove(f"{job.pk}: {source} cannot become {to}")
    changes |= {"state": to, "phase": phase, "reason": reason, "message": message, "version": job.version + 1}
    changes["stalled_since"] = None  # belongs to a running job and its current attempt
    if to == S.QUEUED:
        changes["reason"] = WaitingReason.NOT_EVALUATED_YET
        changes["evaluated_at"] = None
        changes.setdefault("queued_at", job.queued_at or now)
    if to == S.RUNNING and job.started_at is None:
        changes["started_at"] = now
    if to in TERMINAL_STATES:
        changes["finished_at"] = now
    if to not in {S.PAUSING, S.STOPPING, *TERMINAL_STATES}:
        changes.setdefault("target_state", "")
    if to not in HOLDING_STATES:
        _release(job, outcome=to, message=message, now=now)
    if Job.objects.filter(pk=job.pk, state=source, version=job.version).update(**changes) != 1:
        raise LostRace(f"{job.pk} left {source} concurrently")
    for name, value in changes.items():
        setattr(job, name, value)
    return record_event(
        job,
        "state_changed",
        actor=actor,
        now=now,
        from_state=source,
        to_state=to,
        reason=reason,
        message=message,
        data=data,
        job_version=job.version,
    )


def _release(job: Job, *, outcome: str, message: str, now: datetime) -> None:
    job.reservations.filter(released_at__isnull=True).update(released_at=now)
    job.attempts.filter(ended_at__isnull=True).update(ended_at=now, outcome=outcome, message=message)
    close_requests(job.pk, now=now)
    enqueue("schedule", job.pool_id, now)
    if outcome in TERMINAL_STATES and settings.ENVIRONMENT.otlp_url:
        enqueue("trace", job.pk, now)
