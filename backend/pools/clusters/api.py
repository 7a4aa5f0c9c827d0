"""REST over the settings of pools, for operators: where a pool runs, on which hosts, and what was seen there."""

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status
from pydantic import BaseModel, Field

from backend.accounts.bearer import ApiKeyAuth, caller_of
from backend.accounts.operators.acting import Operator
from backend.accounts.scopes import OPERATES
from backend.api.etags import IfMatch, etag_of, tagged
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.borders.types import OneLine, PathId
from backend.clock import database_now
from backend.errors import Invalid
from backend.pools.clusters import settings
from backend.pools.clusters.drains import LONGEST_REASON, devices_out, drain, drained_of, give_back
from backend.pools.clusters.looks import is_amiss, look_of, words
from backend.pools.clusters.settings import PoolSettings, change_pool, make_pool, merged, settings_of
from backend.pools.models import RayLook, ResourcePool
from backend.pools.selectors import the_pool
from engine.spec.strict import Strict

router = Router(tags=["Pools"])

MAY_OPERATE = ApiKeyAuth(settings.SCOPE)
MAY_TAKE_OUT = ApiKeyAuth(OPERATES)


class HostOut(BaseModel):
    name: str
    labels: dict[str, str]
    cpus: float
    gpus: float


class LookOut(BaseModel):
    """What the pool's Ray was last seen to have."""

    at: datetime
    seen_at: datetime | None = Field(description="When it answered last; what follows is of then.")
    devices: int | None = Field(description="Of the pool's hosts, in the pool's devices.")
    promised: int | None = Field(description="Of these: the pool's capacity, and that of other pools on its hosts.")
    missing: int
    is_amiss: bool = Field(description="For a while now: devices are missing, or it does not answer.")
    problem: str = Field(description="Why it is amiss; empty: it is not.")
    hosts: list[HostOut] = Field(description="At most 500.")


class DrainedOut(BaseModel):
    host: str
    at: datetime
    by: str
    reason: str


class HostWish(Strict):
    host: Annotated[OneLine, Field(max_length=255, description="Its name, as in the settings' `look`.")]
    reason: Annotated[OneLine, Field(max_length=LONGEST_REASON)] = ""


class PoolSettingsOut(PoolSettings):
    """Of a token no more than the name of its file is ever told."""

    id: str
    look: LookOut | None = Field(description="Null: nobody has looked yet.")
    drained: list[DrainedOut] = Field(description="Hosts that nothing new is placed on.")
    num_drained: int = Field(description="Of the capacity, what nothing starts on because of them.")


class PoolPatch(Strict):
    """What is left out stays."""

    name: settings.Name | None = None
    flavor: settings.Flavor | None = None
    capacity: settings.Capacity | None = None
    device_gb: settings.Memory = None
    is_open: settings.IsOpen | None = None
    device: settings.Kind = None
    labels: settings.Labels | None = None
    autoscales: settings.Autoscales | None = None
    ray_url: settings.Address | None = None
    ray_token: settings.Token | None = None
    moves_what_runs: bool = Field(
        False, description="With another address: what runs is looked for there. Else the pool must hold nothing."
    )


@router.post(
    "/pools",
    auth=MAY_OPERATE,
    response={201: PoolSettingsOut} | problems(400, 409, 413, 415, 422),
    summary="Make a pool",
)
def post_pool(request: HttpRequest, response: HttpResponse, body: PoolSettings) -> Status[PoolSettingsOut]:
    """For operators. Teams use it once they have a quota in it."""
    operator, now = Operator.speaking(caller_of(request), settings.SCOPE), database_now()
    return Status(201, _told(make_pool(operator, body, now=now), response, now))


@router.get(
    "/pools/{pool_id}/settings",
    auth=MAY_OPERATE,
    response={200: PoolSettingsOut} | problems(404),
    summary="A pool's settings, and what its Ray has",
)
def pool_settings(request: HttpRequest, response: HttpResponse, pool_id: PathId) -> PoolSettingsOut:
    """For operators. The ETag is of the settings and of all quotas of the pool."""
    return _told(the_pool(pool_id), response, database_now())


@router.patch(
    "/pools/{pool_id}/settings",
    auth=MAY_OPERATE,
    response={200: PoolSettingsOut} | problems(400, 404, 409, 412, 413, 415, 422),
    summary="Change a pool's settings",
)
def patch_pool(
    request: HttpRequest, response: HttpResponse, pool_id: PathId, body: PoolPatch, if_match: IfMatch = None
) -> PoolSettingsOut:
    """For operators. What runs stays; labels and device hold for attempts that begin from now on. 409 `pool_in_use`:
    the capacity is below what is held or promised, or the address changes while jobs hold devices there."""
    pool, now = the_pool(pool_id), database_now()
    wanted = merged(settings_of(pool), _given(body))
    changed = change_pool(
        Operator.speaking(caller_of(request), settings.SCOPE), pool, wanted, moves_what_runs=body.moves_what_runs,
        if_match=if_match or etag_of(pool.version), now=now,
    )  # fmt: skip
    return _told(changed, response, now)


@router.get(
    "/operator/pools",
    auth=MAY_OPERATE,
    response={200: Page[PoolSettingsOut]} | problems(),
    summary="All pools, with their settings",
)
def all_pools(request: HttpRequest) -> Page[PoolSettingsOut]:
    """For operators. By name."""
    now = database_now()
    return Page(data=[_represent_pool(pool, now) for pool in ResourcePool.objects.order_by("name")])


@router.post(
    "/pools/{pool_id}/hosts:drain",
    auth=MAY_TAKE_OUT,
    response={200: PoolSettingsOut} | problems(400, 404, 409, 413, 415, 422),
    summary="Take a host out",
)
def drain_host(request: HttpRequest, response: HttpResponse, pool_id: PathId, body: HostWish) -> PoolSettingsOut:
    """For operators. No pool of this Ray places anything new on it; what runs there ends, or is paused and resumed.
    Twice is the same as once. 409 `host_unknown`: the Ray was last seen without it."""
    pool, now = the_pool(pool_id), database_now()
    drain(Operator.speaking(caller_of(request), OPERATES), pool, body.host, reason=body.reason, now=now)
    return _told(pool, response, now)


@router.post(
    "/pools/{pool_id}/hosts:give-back",
    auth=MAY_TAKE_OUT,
    response={200: PoolSettingsOut} | problems(400, 404, 413, 415, 422),
    summary="Give a host back",
)
def give_host_back(request: HttpRequest, response: HttpResponse, pool_id: PathId, body: HostWish) -> PoolSettingsOut:
    """For operators. Jobs may be placed on it again. Twice is the same as once."""
    pool, now = the_pool(pool_id), database_now()
    give_back(Operator.speaking(caller_of(request), OPERATES), pool, body.host, now=now)
    return _told(pool, response, now)


def _given(body: PoolPatch) -> dict[str, Any]:
    given = body.model_dump(exclude_unset=True, exclude={"moves_what_runs"})
    nulls = [name for name, value in given.items() if value is None and name not in settings.NULLABLE]
    if nulls:
        raise Invalid(f"{', '.join(nulls)}: null is no value of it; leave it out, and it stays as it is.")
    return given


def _told(pool: ResourcePool, response: HttpResponse, now: datetime) -> PoolSettingsOut:
    tagged(response, etag_of(pool.version))
    return _represent_pool(pool, now)


def _represent_pool(pool: ResourcePool, now: datetime) -> PoolSettingsOut:
    look = look_of(pool)
    return PoolSettingsOut.model_construct(
        **settings_of(pool).model_dump(),
        id=pool.pk,
        look=_represent(look, now) if look else None,
        drained=[DrainedOut(host=row.name, at=row.at, by=row.by, reason=row.reason) for row in drained_of(pool)],
        num_drained=devices_out(pool),
    )


def _represent(look: RayLook, now: datetime) -> LookOut:
    return LookOut(
        at=look.at,
        seen_at=look.seen_at,
        devices=look.devices,
        promised=look.promised,
        missing=look.missing,
        is_amiss=is_amiss(look, now),
        problem=words(look) if look.amiss_since else "",
        hosts=[HostOut.model_validate(host) for host in look.hosts],
    )
