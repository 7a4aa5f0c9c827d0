"""Pools, quotas and budgets, as programs see them. Adding a field is fine, changing one is not."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from backend.pools.budgets import BudgetState
from backend.pools.clusters.looks import is_amiss
from backend.pools.models import RayLook, ResourcePool, TeamQuota
from engine.spec.strict import Strict

MOST_DEVICES = 1_000_000  # far more than any pool has, far less than the column holds
MOST_WEIGHT = 1_000
MOST_GPU_SECONDS = 2**53  # what every JSON reader keeps exactly


class QuotaOut(BaseModel):
    nominal: int = Field(description="Devices that the team gets whenever it asks.")
    borrow_limit: int | None = Field(description="How many more it may borrow while they are free; null: all.")
    lend_limit: int | None = Field(description="How many of its own, while unused, others may borrow; null: all.")
    weight: float = Field(description="Of two teams that borrow, one of weight 2 gets twice as much.")
    used: int
    borrowed: int = Field(description="Of those in use, how many are above nominal.")


class PoolOut(BaseModel):
    """A pool in devices. `reserved` counts every team's, `quota` is the caller's own."""

    id: str
    name: str
    flavor: str
    capacity: int
    device_gb: int | None = Field(description="Memory of each device, in 10^9 bytes; null: unknown.")
    is_open: bool = Field(description="False: what runs may end, and nothing starts.")
    reserved: int
    missing: int = Field(description="Devices of its hosts that are promised and were not there when last looked at.")
    is_away: bool = Field(description="What runs it has not answered for a while: what runs goes on, nothing starts.")
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
    """A budget in GPU-seconds of this calendar month (UTC), over all pools."""

    team: str
    period: Literal["month"] = "month"
    gpu_seconds: int | None = Field(description="The limit; null: none.")
    spent: float
    committed: float = Field(description="What everything that runs would still use if it took its longest.")
    left: float | None = Field(description="A job starts only if its longest run fits; null: no limit.")


class BudgetIn(Strict):
    gpu_seconds: int | None = Field(ge=0, le=MOST_GPU_SECONDS, description="Null takes the limit away.")


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
    pool: ResourcePool, quota: TeamQuota, look: RayLook | None, *, used: int, reserved: int, now: datetime
) -> PoolOut:
    amiss = look if is_amiss(look, now) else None
    return PoolOut(
        id=pool.pk,
        name=pool.name,
        flavor=pool.flavor,
        capacity=pool.capacity,
        device_gb=pool.device_gb,
        is_open=pool.is_open,
        reserved=reserved,
        missing=amiss.missing if amiss and not pool.autoscales else 0,
        is_away=bool(amiss and amiss.problem),
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
