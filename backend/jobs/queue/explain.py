"""Explains the queue: why a job waits, when it would start, what would start now in its place. These are the
scheduler's own decisions on other inputs, read without the pool's lock, so an answer may be slightly out of date.

Invariant: advice can be followed. Devices and preemptibility of a queued job cannot be changed, so advice is about a
new job, submitted now at the end of the queue, with this one cancelled.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from backend.jobs.models import Job, JobState
from backend.jobs.queue.pool_snapshot import read_snapshot
from backend.jobs.queue.waiting_messages import waiting_message
from backend.pools.clusters.sandboxes import lacks_sandbox
from backend.pools.decision.decide import decide
from backend.pools.decision.forecast import largest_that_starts, only_ahead_of, starts_at, would_start
from backend.pools.decision.views import PoolView, QueuedJobView, WaitingReason
from backend.pools.models import ResourcePool
from engine.spec.environments.sandbox import needs_sandbox
from engine.spec.job import JobSpec

_NEWCOMER: Final = "~newcomer"
# Reasons that neither waiting nor a smaller size changes.
_PERMANENT = {WaitingReason.POOL_CLOSED, WaitingReason.MAINTENANCE, WaitingReason.NO_SANDBOX}


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """A size with which a replacement job would start now: its devices, and the replicas that this leaves."""

    devices: int
    fewer: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitExplained:
    reason: WaitingReason
    message: str
    position: int | None
    """In the order in which the scheduler evaluates the queue; 1 is next."""
    starts_at: datetime | None
    smaller: Smaller | None
    as_preemptible: bool
    """A preemptible replacement would start now. False also if the job is preemptible already."""


def outlook(spec: JobSpec, *, team_id: str, pool: ResourcePool, now: datetime) -> WaitingReason | None:
    """Why such a job would wait if submitted now; None: it would start."""
    newcomer = QueuedJobView(
        id=_NEWCOMER,
        team=team_id,
        devices=spec.min_devices,
        queued_at=now,
        priority=spec.placement.priority,
        preemptible=spec.placement.preemptible,
        max_runtime_s=spec.max_runtime_s,
        lacks_sandbox=needs_sandbox(spec.environment.name, spec.environment.params) and lacks_sandbox(pool),
    )
    view = read_snapshot(pool, now=now).view
    return decide(replace(view, queued=[*view.queued, newcomer])).reasons.get(newcomer.id)


def explain_wait(job: Job, *, now: datetime) -> WaitExplained | None:
    """None if the job is no longer queued, or would start right now."""
    assert job.state == JobState.QUEUED, f"{job.pk} is {job.state}"
    view = read_snapshot(job.pool, now=now).view
    decision = decide(view)
    reason = decision.reasons.get(job.pk)
    mine = next((one for one in view.queued if one.id == job.pk), None)
    if reason is None or mine is None:
        return None
    message = waiting_message(
        reason,
        devices=mine.devices,
        pool=job.pool,
        not_before=mine.not_before,
        budget_of=decision.budgets_of.get(job.pk, ""),
    )
    ahead = only_ahead_of(view, job.pk, decision)
    replacement = replace(mine, id=_NEWCOMER, queued_at=now, not_before=None)
    without = replace(
        view,
        queued=[*(one for one in view.queued if one.id != job.pk), replacement],
        claims={name: devices for name, devices in view.claims.items() if name != job.pk},
    )
    return WaitExplained(
        reason=reason,
        message=message,
        position=decision.line.index(job.pk) + 1,
        starts_at=None if reason in _PERMANENT | {WaitingReason.EXCEEDS_MAX} else starts_at(ahead, job.pk),
        smaller=None if reason in _PERMANENT else _smaller(without, replacement, JobSpec.accepted(job.spec)),
        as_preemptible=not mine.preemptible and would_start(without, replace(replacement, preemptible=True)),
    )


def _smaller(view: PoolView, job: QueuedJobView, spec: JobSpec) -> Smaller | None:
    """With fewer replicas; the trainer's devices, if any, stay the same."""
    trainer, each = spec.trainer_devices, spec.resources.devices_per_replica
    least = (job.devices - trainer) // each
    sizes = [trainer + replicas * each for replicas in range(1, least)]
    devices = largest_that_starts(view, job, sizes)
    if devices is None:
        return None
    return Smaller(devices=devices, fewer=job.devices - devices, replicas=(devices - trainer) // each)
