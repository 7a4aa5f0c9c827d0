"""The current state of a pool as views of `backend.pools.decision.views`, for a round, a forecast and a page.

Invariant: everything is computed from reservations, jobs and quotas, without counters of its own. A round reads under
the pool row's lock; other readers do without and may be slightly out of date.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import F

from backend.jobs.control_requests import jobs_with_requests
from backend.jobs.models import Job, JobState
from backend.pools.budgets import budget_states, budgeted
from backend.pools.clusters.drains import devices_out
from backend.pools.clusters.sandboxes import lacks_sandbox
from backend.pools.decision.views import HolderView, PoolView, QueuedJobView, TeamView
from backend.pools.history import histories_of
from backend.pools.maintenance import stops_starts
from backend.pools.models import Claim, Reservation, ReservationRole, ResourcePool, TeamQuota
from backend.pools.spending_limits import SpendingLimits, spending_limits_of
from engine.spec.environments.sandbox import needs_sandbox

LEAVING_STATES = (JobState.PAUSING, JobState.STOPPING)


class Waiting(NamedTuple):
    """A queued job, with the columns that its page shows."""

    id: str
    team_id: str
    min_devices: int
    devices: int
    queued_at: datetime
    priority: int
    preemptible: bool
    max_runtime_s: int
    not_before: datetime | None
    reason: str
    evaluated_at: datetime | None
    project_id: str
    created_by_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    view: PoolView
    waiting: dict[str, Waiting] = field(repr=False)
    histories: dict[str, float]


def read_snapshot(pool: ResourcePool, *, now: datetime, lock_budgets: bool = False) -> PoolSnapshot:
    quotas = list(TeamQuota.objects.filter(pool=pool).order_by("team_id"))
    names = [quota.team_id for quota in quotas]
    budgets = budget_states(budgeted(names), now=now, lock=lock_budgets)
    histories = histories_of(pool, now=now)
    limits = spending_limits_of()(pool, names, now, lock_budgets)
    line = _line_of(pool)
    sizes, lacking = _replica_devices(pool), _lacking_sandbox(pool)
    view = PoolView(
        capacity=pool.capacity,
        drained=devices_out(pool),
        in_maintenance=stops_starts(now),
        is_open=pool.is_open,
        teams={
            quota.team_id: TeamView(
                nominal=quota.nominal,
                borrow_limit=quota.borrow_limit,
                lend_limit=quota.lend_limit,
                weight=quota.weight,
                usage=histories.get(quota.team_id, 0.0),
                budget_left=budgets[quota.team_id].left if quota.team_id in budgets else None,
            )
            for quota in quotas
        },
        holders=holders_of(pool, limits),
        queued=[_queued(row, sizes.get(row.id, 0), limits, lacks_sandbox=row.id in lacking) for row in line],
        claims=dict(Claim.objects.filter(pool=pool).values_list("job_id", "devices")),
        now=now,
        limits=limits.left,
    )
    return PoolSnapshot(view=view, waiting={row.id: row for row in line}, histories=histories)


def holders_of(pool: ResourcePool, limits: SpendingLimits = SpendingLimits()) -> list[HolderView]:  # noqa: B008  # it is frozen
    live = Reservation.objects.filter(pool=pool, released_at__isnull=True).order_by("job_id")
    rows: dict[str, list[_Held]] = defaultdict(list)
    for row in map(_Held._make, live.values_list(*_HELD_COLUMNS)):
        rows[row.job_id].append(row)
    sizes = _sizes(Job.objects.filter(pk__in=[job for job, held in rows.items() if held[0].is_elastic]))
    busy = jobs_with_requests(rows)
    return [_holder(held, sizes.get(job, 0), limits, is_busy=job in busy) for job, held in rows.items()]


class _Held(NamedTuple):
    """A live reservation with its job."""

    job_id: str
    team_id: str
    role: str
    devices: int
    created_at: datetime
    reclaimed_at: datetime | None
    state: str
    priority: int
    preemptible: bool
    max_runtime_s: int
    all_devices: int
    min_devices: int
    project_id: str
    created_by_id: int

    @property
    def is_elastic(self) -> bool:
        return self.all_devices > self.min_devices


_HELD_COLUMNS = (
    "job_id", "team_id", "role", "devices", "created_at", "reclaimed_at", "job__state", "job__priority",
    "job__preemptible", "job__max_runtime_s", "job__devices", "job__min_devices", "job__project_id",
    "job__created_by_id",
)  # fmt: skip


def _holder(held: list[_Held], replica_devices: int, limits: SpendingLimits, *, is_busy: bool) -> HolderView:
    row = held[0]
    core = [one for one in held if one.role != ReservationRole.ELASTIC]
    elastic = [one for one in held if one.role == ReservationRole.ELASTIC]
    kept = sum(one.reclaimed_at is None for one in elastic)
    since = min((one.created_at for one in core), default=row.created_at)
    return HolderView(
        id=row.job_id,
        team=row.team_id,
        devices=sum(one.devices for one in core),
        since=since,
        priority=row.priority,
        preemptible=row.preemptible,
        is_leaving=row.state in LEAVING_STATES,
        may_grow=row.state == JobState.RUNNING and not is_busy,
        replica_devices=replica_devices,
        replicas=kept,
        replicas_leaving=len(elastic) - kept,
        most_replicas=(row.all_devices - row.min_devices) // replica_devices if replica_devices else 0,
        ends_by=since + timedelta(seconds=row.max_runtime_s),
        draws_on=limits.drawn_on(row.team_id, row.project_id, row.created_by_id),
    )


def _line_of(pool: ResourcePool) -> list[Waiting]:
    """The whole queue, unlocked: a limit here would let one team's waiting jobs hide those of all others."""
    line = Job.objects.filter(pool=pool, state=JobState.QUEUED, queued_at__isnull=False)
    return [Waiting(*row) for row in line.order_by("queued_at", "id").values_list(*Waiting._fields)]


def _replica_devices(pool: ResourcePool) -> dict[str, int]:
    """Sizes of queued jobs that may get more replicas than they start with; others need no look at their spec."""
    return _sizes(Job.objects.filter(pool=pool, state=JobState.QUEUED, devices__gt=F("min_devices")))


def _sizes(jobs: Any) -> dict[str, int]:
    """Devices per replica by job, from its spec; a spec of another release may lack the field."""
    rows = jobs.values_list("pk", "spec__resources__devices_per_replica")
    return {job: size for job, size in rows if isinstance(size, int) and size > 0}


def _lacking_sandbox(pool: ResourcePool) -> set[str]:
    """Queued jobs that need a sandbox, if no node of the pool has one."""
    if not lacks_sandbox(pool):
        return set()
    line = Job.objects.filter(pool=pool, state=JobState.QUEUED)
    rows = line.values_list("pk", "spec__environment__name", "spec__environment__params")
    return {job for job, name, params in rows if needs_sandbox(name, params or {})}


def _queued(row: Waiting, replica_devices: int, limits: SpendingLimits, *, lacks_sandbox: bool) -> QueuedJobView:
    return QueuedJobView(
        id=row.id,
        team=row.team_id,
        devices=row.min_devices,
        queued_at=row.queued_at,
        priority=row.priority,
        preemptible=row.preemptible,
        max_runtime_s=row.max_runtime_s,
        not_before=row.not_before,
        replica_devices=replica_devices,
        most_replicas=(row.devices - row.min_devices) // replica_devices if replica_devices else 0,
        draws_on=limits.drawn_on(row.team_id, row.project_id, row.created_by_id),
        lacks_sandbox=lacks_sandbox,
    )
