"""Elastic replicas: idle devices become further replicas of running jobs. Pure.

Invariants:
- replicas are granted one at a time, to the team that borrows least, so idle devices are spread;
- a replica needs room within ceiling, fence and budget like a job, and can always be taken back.
"""

import heapq
from collections.abc import Sequence
from datetime import datetime

from backend.pools.decision.balance import Balance
from backend.pools.decision.views import HolderView, Resize

# A round writes two rows for each; the next round continues.
MOST_GRANTS = 200

_Key = tuple[float, float, int, str]


def grant_replicas(balance: Balance, growing: Sequence[HolderView], *, now: datetime) -> tuple[Resize, ...]:
    """One entry per job that gains replicas, with its new total of elastic replicas."""
    gained: dict[str, int] = {}
    borrowed: dict[str, int] = {}
    jobs = {one.id: one for one in growing}
    heads = [_key(balance, one, 0) for one in growing]
    heapq.heapify(heads)
    granted = 0
    while heads and granted < MOST_GRANTS:
        job = jobs[heapq.heappop(heads)[-1]]
        if not _may_have_another(balance, job, now):
            continue
        borrowed[job.id] = borrowed.get(job.id, 0) + balance.take(job.team, job.replica_devices, firm=False)
        gained[job.id] = gained.get(job.id, 0) + 1
        granted += 1
        if job.replicas + gained[job.id] < job.most_replicas:
            heapq.heappush(heads, _key(balance, job, gained[job.id]))
    return tuple(
        Resize(job=name, replicas=jobs[name].replicas + more, borrowed=borrowed[name])
        for name, more in sorted(gained.items())
    )


def _key(balance: Balance, job: HolderView, gained: int) -> _Key:
    team = balance.teams[job.team]
    return balance.share(job.team), team.usage / team.view.weight, job.replicas + gained, job.id


def _may_have_another(balance: Balance, job: HolderView, now: datetime) -> bool:
    team = balance.teams[job.team]
    if team.quota_use + job.replica_devices > team.view.ceiling or not balance.has_free(job.team, job.replica_devices):
        return False
    cost = job.replica_devices * max(0.0, (job.ends_by - now).total_seconds() if job.ends_by else 0.0)
    if (team.budget_left is not None and cost > team.budget_left) or balance.exceeded_limit(job.draws_on, cost):
        return False
    if team.budget_left is not None:
        team.budget_left -= cost
    balance.pay(job.draws_on, cost)
    return True
