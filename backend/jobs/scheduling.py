"""One round of a pool's scheduler: read, decide, write, all under the pool row's lock.

Invariants:
- rounds of one pool never overlap, so two submissions that race for the last device meet here and one waits;
- reservations, attempt, state and outbox row of an admitted job are written in one transaction: all or none;
- a reason is written only when it changed, so an idle line costs nothing;
- a round writes a bounded number of jobs and calls the next round for the rest: however long the line, each round
  ends well within the time limit of a background task.

Lock order: pool, then job. A release needs no pool lock: a device whose release is not committed yet counts as held.
"""

import logging
from dataclasses import replace
from datetime import datetime
from typing import cast

from django.db import transaction
from pydantic import ValidationError

from backend.jobs.attempts import begin_attempt
from backend.jobs.lifecycle import advance, next_cursor
from backend.jobs.models import Job, JobState
from backend.jobs.outbox import enqueue
from backend.pools.decide import PoolView, QueuedJobView, WaitingReason, decide
from backend.pools.models import Reservation, ReservationRole, ResourcePool
from backend.pools.selectors import nominals_in, use_by_team
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)

# A start writes eight rows, an explanation two: a full round is a second or two on a busy small machine.
MOST_STARTS = 100
MOST_EXPLANATIONS = 300


def schedule_pool(pool_id: str, *, now: datetime) -> int:
    """How many jobs were started."""
    with transaction.atomic():
        pool = ResourcePool.objects.select_for_update(of=("self",), no_key=True).filter(pk=pool_id).first()
        if pool is None:
            return 0
        waiting = _waiting_in(pool)
        verdict = decide(_pool_view(pool, waiting, now=now))
        news = [(job_id, reason) for job_id, reason in verdict.reasons.items() if waiting[job_id].reason != reason]
        started = sum(_start(job_id, pool, now=now) for job_id in verdict.admitted[:MOST_STARTS])
        for job_id, reason in news[:MOST_EXPLANATIONS]:
            _explain(job_id, reason, pool)
        if len(verdict.admitted) > MOST_STARTS or len(news) > MOST_EXPLANATIONS:
            enqueue("schedule", pool.pk, now)
    if waiting:
        log.info("scheduled pool=%s waiting=%d started=%d", pool.name, len(waiting), started)
    return started


def outlook(spec: JobSpec, *, team_id: str, pool: ResourcePool, now: datetime) -> WaitingReason | None:
    """Why a job like this would wait if it were submitted now; None: it would start. Reads without the lock."""
    newcomer = QueuedJobView(id="~newcomer", team=team_id, devices=spec.num_devices, queued_at=now)
    view = _pool_view(pool, _waiting_in(pool), now=now)
    return decide(replace(view, queued=[*view.queued, newcomer])).reasons.get(newcomer.id)


def waiting_message(reason: WaitingReason, *, devices: int, pool: ResourcePool) -> str:
    """Says nothing that goes stale while the reason stays the same."""
    needed = f"The job needs {devices} device{'s' if devices != 1 else ''}"
    match reason:
        case WaitingReason.EXCEEDS_MAX:
            return f"{needed}: more than pool {pool.name} has or your team may ever use in it."
        case WaitingReason.TEAM_CEILING:
            return f"{needed}; your team's quota in pool {pool.name} has fewer left."
        case WaitingReason.BEHIND_PRIORITY:
            return "Your team's quota is being kept for an older job of your team."
        case WaitingReason.POOL_FULL:
            return f"{needed}; fewer are free in pool {pool.name} right now."
        case WaitingReason.BACKFILL_HOLD:
            return "The free devices are being kept for an older, bigger job."
        case WaitingReason.NOT_EVALUATED_YET:
            return "The scheduler has not looked at this job yet."


def _waiting_in(pool: ResourcePool) -> dict[str, Job]:
    """The whole line, unlocked: a limit here would let one team's waiting jobs hide everybody else's."""
    line = Job.objects.filter(pool=pool, state=JobState.QUEUED).order_by("queued_at", "id")
    return {job.pk: job for job in line.only("id", "team_id", "devices", "queued_at", "reason")}


def _pool_view(pool: ResourcePool, waiting: dict[str, Job], *, now: datetime) -> PoolView:
    return PoolView(
        capacity=pool.capacity,
        used=use_by_team(pool),
        nominal=nominals_in(pool),
        queued=[
            QueuedJobView(id=job.pk, team=job.team_id, devices=job.devices, queued_at=cast(datetime, job.queued_at))
            for job in waiting.values()
        ],
        now=now,
    )


def _locked_if_waiting(job_id: str) -> Job | None:
    """A job that somebody is cancelling this moment is skipped; its cancellation calls the next round."""
    jobs = Job.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
    return jobs.filter(pk=job_id, state=JobState.QUEUED).first()


def _start(job_id: str, pool: ResourcePool, *, now: datetime) -> bool:
    job = _locked_if_waiting(job_id)
    if job is None:
        return False
    try:
        spec = JobSpec.model_validate(job.spec)
    except ValidationError:  # taken in by another release; it must not stop everybody behind it
        message = "This release does not understand the job's spec any more; submit it again."
        advance(job, JobState.FAILED, actor="scheduler", now=now, message=message, failure_class="config")
        return False
    assert spec.num_devices == job.devices, "devices were written from this very spec"
    shares = {
        ReservationRole.TRAINER: spec.resources.trainer_devices,
        ReservationRole.ROLLOUT: spec.rollout.replicas * spec.resources.devices_per_replica,
    }
    Reservation.objects.bulk_create(
        Reservation(
            job=job,
            attempt=job.num_attempts + 1,
            pool=pool,
            team_id=job.team_id,
            role=role,
            devices=devices,
            created_at=now,
        )
        for role, devices in shares.items()
    )
    begin_attempt(job, now=now, message="Waiting for the engine to start.")
    return True


def _explain(job_id: str, reason: WaitingReason, pool: ResourcePool) -> None:
    """No event: a job in a busy line would gather hundreds. The cursor alone moves, so open pages pull it."""
    job = _locked_if_waiting(job_id)
    if job is None:
        return
    job.reason, job.message = reason, waiting_message(reason, devices=job.devices, pool=pool)
    job.save(update_fields=["reason", "message"])
    next_cursor(job)
