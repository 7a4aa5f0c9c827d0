"""A pool's queue as one team may see it: holders, then waiting jobs in their order.

Invariant: of another team's job only these are shown: the number of devices that it holds or needs, whether it is
preemptible, its state, and since when. No name, id or priority, and no reason: that may be the team's budget.
"""

from dataclasses import dataclass
from datetime import datetime

from backend.accounts.models import Team
from backend.jobs.models import Job, JobState
from backend.jobs.queue.pool_snapshot import PoolSnapshot, read_snapshot
from backend.pools.decision.balance import Balance
from backend.pools.decision.decide import decide
from backend.pools.decision.views import HolderView
from backend.pools.models import ResourcePool

ANOTHER_TEAM = "another team"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    job: Job | None
    """None for another team's job."""
    state: str
    view: HolderView


@dataclass(frozen=True, slots=True, kw_only=True)
class InLine:
    position: int
    job: Job | None
    devices: int
    queued_at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    holding: list[Holding]
    waiting: list[InLine]
    num_waiting: int
    has_more: bool
    free: int
    drained: int
    """Devices of hosts that are being drained."""
    used: int
    used_by_others: int
    share: float
    history: float
    evaluated_at: datetime | None
    """When the scheduler last evaluated the whole queue; None while part of it is new."""


def queue_view_of(team: Team, pool: ResourcePool, *, only_mine: bool, limit: int, now: datetime) -> QueueView:
    snapshot = read_snapshot(pool, now=now)
    view = snapshot.view
    balance = Balance.of(view, {job: kept for job, kept in view.claims.items() if job in snapshot.waiting})
    ordered = _order(snapshot)
    chosen = list(enumerate(ordered, 1))
    if only_mine:
        chosen = [(place, job) for place, job in chosen if snapshot.waiting[job].team_id == team.pk]
    names = [one.id for one in view.holders] + [job for _, job in chosen[:limit]]
    mine = Job.objects.filter(team=team).in_bulk([*names])
    states = dict(Job.objects.filter(pk__in=[one.id for one in view.holders]).values_list("pk", "state"))
    known = balance.teams.get(team.pk)
    used = known.used if known else 0
    evaluated = [row.evaluated_at for row in snapshot.waiting.values()]
    return QueueView(
        holding=[
            Holding(job=mine.get(one.id), state=states.get(one.id, JobState.STOPPING), view=one)
            for one in sorted(view.holders, key=lambda one: (one.since, one.id))
        ],
        waiting=[_in_line(place, snapshot, job, mine.get(job)) for place, job in chosen[:limit]],
        num_waiting=len(ordered),
        has_more=len(chosen) > limit,
        free=max(0, pool.capacity - view.drained - balance.used),
        drained=view.drained,
        used=used,
        used_by_others=balance.used - used,
        share=balance.share(team.pk) if known else 0.0,
        history=snapshot.histories.get(team.pk, 0.0),
        evaluated_at=None if None in evaluated else min((at for at in evaluated if at is not None), default=None),
    )


def _order(snapshot: PoolSnapshot) -> list[str]:
    """The order in which the scheduler would decide now: jobs that would start at once come first."""
    decision = decide(snapshot.view)
    return [*decision.admitted, *decision.line]


def _in_line(place: int, snapshot: PoolSnapshot, job_id: str, job: Job | None) -> InLine:
    row = snapshot.waiting[job_id]
    return InLine(position=place, job=job, devices=row.min_devices, queued_at=row.queued_at, reason=row.reason)
