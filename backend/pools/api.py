"""GET /pools: what there is, and how much of it the caller's team has and holds."""

from django.http import HttpRequest
from ninja import Router
from pydantic import BaseModel

from backend.accounts.bearer import MAY_READ, caller_of
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.pools.models import ResourcePool
from backend.pools.selectors import nominal_of, pools_of, use_by_team

router = Router(tags=["Pools"])


class QuotaOut(BaseModel):
    nominal: int
    used: int


class PoolOut(BaseModel):
    """Devices. `reserved` counts every team's, `quota` is the caller's own."""

    id: str
    name: str
    flavor: str
    capacity: int
    reserved: int
    quota: QuotaOut


@router.get("/pools", auth=MAY_READ, response={200: Page[PoolOut]} | problems(), summary="Pools the team may use")
def pools(request: HttpRequest) -> Page[PoolOut]:
    team = caller_of(request).team
    return Page(data=[_represent(pool, team_id=team.pk, nominal=nominal_of(team, pool)) for pool in pools_of(team)])


def _represent(pool: ResourcePool, *, team_id: str, nominal: int) -> PoolOut:
    use = use_by_team(pool)
    return PoolOut(
        id=pool.pk,
        name=pool.name,
        flavor=pool.flavor,
        capacity=pool.capacity,
        reserved=sum(use.values()),
        quota=QuotaOut(nominal=nominal, used=use.get(team_id, 0)),
    )
