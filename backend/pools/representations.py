"""REST representations of pools, quotas and budgets. Fields may be added, but not changed."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from backend.pools.budgets import BudgetState
from backend.pools.clusters.probes import is_failing
from backend.pools.models import ClusterProbe, ResourcePool, TeamQuota
from engine.spec.strict import Strict

MOST_DEVICES = 1_000_000  # far more than any pool has, far less than the column holds
MOST_WEIGHT = 1_000
MOST_GPU_SECONDS = 2**53  # exact in every JSON parser


class QuotaOut(BaseModel):
    nominal: int = Field(description="Devices guaranteed to the team.")
    borrow_limit: int | None = Field(description="Most devices that it may borrow while they are free. Null: no limit.")
    lend_limit: int | None = Field(description="Most unused devices of its own that others may borrow. Null: all.")
    weight: float = Field(description="Of two borrowing teams, one with weight 2 gets twice as many devices.")
    used: int
    borrowed: int = Field(description="Devices in use above nominal.")


class PoolOut(BaseModel):
    """A pool, in devices. `reserved` counts all teams; `quota` is the caller's."""

    id: str
    name: str
    flavor: str
    capacity: int
    device_gb: int | None = Field(description="Memory of each device, in 10^9 bytes; null: unknown.")
    is_open: bool = Field(description="False: running jobs may end, and no job starts.")
    reserved: int
    missing: int = Field(description="Promised devices that were missing when last seen.")
    is_away: bool = Field(
        description="Its cluster has not answered for a while: running jobs continue, and no job starts."
    )
    quota: QuotaOut


class PoolQuotaOut(QuotaOut):
    pool: str
    pool_name: str
    capacity: int


class TeamQuotaOut(QuotaOut):
    team: str
    team_name: str


class QuotaIn(Strict):
    nominal: int = Field(ge=0, le=MOST_DEVICES)
    borrow_limit: int | None = Field(None, ge=0, le=MOST_DEVICES)
    lend_limit: int | None = Field(None, ge=0, le=MOST_DEVICES)
    weight: float = Field(1.0, gt=0, le=MOST_WEIGHT)


class BudgetOut(BaseModel):
    """A budget in GPU-seconds for the current calendar month (UTC), over all pools."""

    team: str
    period: Literal["month"] = "month"
    gpu_seconds: int | None = Field(description="The limit. Null: no limit.")
    spent: float
    committed: float = Field(description="The most that running jobs can still use.")
    left: float | None = Field(description="A job starts only if its maximum runtime fits. Null: no limit.")


class BudgetIn(Strict):
    gpu_seconds: int | None = Field(ge=0, le=MOST_GPU_SECONDS, description="Null removes the limit.")


def quota_fields(quota: TeamQuota, used: int) -> QuotaOut:
    return QuotaOut(
        nominal=quota.nominal,
        borrow_limit=quota.borrow_limit,
        lend_limit=quota.lend_limit,
        weight=quota.weight,
        used=used,
        borrowed=max(0, used - quota.nominal),
    )


def represent_pool(
    pool: ResourcePool, quota: TeamQuota, probe: ClusterProbe | None, *, used: int, reserved: int, now: datetime
) -> PoolOut:
    failing = probe if is_failing(probe, now) else None
    return PoolOut(
        id=pool.pk,
        name=pool.name,
        flavor=pool.flavor,
        capacity=pool.capacity,
        device_gb=pool.device_gb,
        is_open=pool.is_open,
        reserved=reserved,
        missing=failing.missing if failing and not pool.autoscales else 0,
        is_away=bool(failing and failing.problem),
        quota=quota_fields(quota, used),
    )


def represent_pool_quota(quota: TeamQuota, *, used: int) -> PoolQuotaOut:
    pool = quota.pool
    fields = quota_fields(quota, used).model_dump()
    return PoolQuotaOut(pool=pool.pk, pool_name=pool.name, capacity=pool.capacity, **fields)


def represent_team_quota(quota: TeamQuota, *, used: int) -> TeamQuotaOut:
    return TeamQuotaOut(team=quota.team_id, team_name=quota.team.name, **quota_fields(quota, used).model_dump())


def represent_budget(team_id: str, state: BudgetState) -> BudgetOut:
    return BudgetOut(
        team=team_id, gpu_seconds=state.limit, spent=state.spent, committed=state.committed, left=state.left
    )
