"""REST over the settings of pools, for operators: a pool's Ray, its hosts, and the devices last seen there."""

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status
from pydantic import BaseModel, Field

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.accounts.keys.scopes import OPERATES
from backend.accounts.operators.acting import Operator
from backend.api.etags import IfMatch, etag_of, tagged
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.borders.types import OneLine, PathId
from backend.clock import database_now
from backend.errors import Invalid
from backend.pools.clusters import settings
from backend.pools.clusters.drains import LONGEST_REASON, devices_out, drain, drained_of, give_back
from backend.pools.clusters.probes import describe_problem, is_failing, probe_of
from backend.pools.clusters.settings import PoolSettings, change_pool, make_pool, merged, settings_of
from backend.pools.models import ClusterProbe, ResourcePool
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


class ProbeOut(BaseModel):
    """The devices that the pool's Ray was last seen to have."""

    at: datetime
    seen_at: datetime | None = Field(description="When it last answered. The fields below are of that time.")
    devices: int | None = Field(description="Devices of the pool's hosts.")
    promised: int | None = Field(description="Capacity of the pool plus that of other pools on its hosts.")
    missing: int
    is_failing: bool = Field(description="Whether devices are missing, or it has not answered, for over a minute.")
    problem: str = Field(description="The problem; empty if there is none.")
    hosts: list[HostOut] = Field(description="At most 500.")


class DrainedOut(BaseModel):
    host: str
    at: datetime
    by: str
    reason: str


class HostWish(Strict):
    host: Annotated[OneLine, Field(max_length=255, description="Host name, as in `probe` of the pool's settings.")]
    reason: Annotated[OneLine, Field(max_length=LONGEST_REASON)] = ""


class PoolSettingsOut(PoolSettings):
    """A pool's settings. Of a token, only the name of its file is included."""

    id: str
    probe: ProbeOut | None = Field(description="Null: not probed yet.")
    drained: list[DrainedOut] = Field(description="Hosts on which nothing new is placed.")
    num_drained: int = Field(description="Devices of the capacity that are unavailable because of drained hosts.")


class PoolPatch(Strict):
    """Omitted fields stay unchanged."""

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
    moves_running_jobs: bool = Field(
        False, description="With a new address: running jobs are expected there. Otherwise no job may hold devices."
    )


@router.post(
    "/pools",
    auth=MAY_OPERATE,
    response={201: PoolSettingsOut} | problems(400, 409, 413, 415, 422),
    summary="Create a pool",
)
def post_pool(request: HttpRequest, response: HttpResponse, body: PoolSettings) -> Status[PoolSettingsOut]:
    """For operators. A team can use the pool once it has a quota there."""
    operator, now = Operator.speaking(caller_of(request), settings.SCOPE), database_now()
    return Status(201, _tag_and_represent(make_pool(operator, body, now=now), response, now))


@router.get(
    "/pools/{pool_id}/settings",
    auth=MAY_OPERATE,
    response={200: PoolSettingsOut} | problems(404),
    summary="Get a pool's settings",
)
def pool_settings(request: HttpRequest, response: HttpResponse, pool_id: PathId) -> PoolSettingsOut:
    """For operators. Includes the devices that its Ray was last seen to have. The ETag covers settings and quotas."""
    return _tag_and_represent(the_pool(pool_id), response, database_now())


@router.patch(
    "/pools/{pool_id}/settings",
    auth=MAY_OPERATE,
    response={200: PoolSettingsOut} | problems(400, 404, 409, 412, 413, 415, 422),
    summary="Update a pool's settings",
)
def patch_pool(
    request: HttpRequest, response: HttpResponse, pool_id: PathId, body: PoolPatch, if_match: IfMatch = None
) -> PoolSettingsOut:
    """For operators. Running jobs continue; labels and device apply to later attempts. 409 `pool_in_use`: the
    new capacity is below what is held or promised, or the address changes while jobs hold devices there."""
    pool, now = the_pool(pool_id), database_now()
    requested = merged(settings_of(pool), _set_fields(body))
    operator = Operator.speaking(caller_of(request), settings.SCOPE)
    changed = change_pool(
        operator, pool, requested, moves_running_jobs=body.moves_running_jobs,
        if_match=if_match or etag_of(pool.version), now=now,
    )  # fmt: skip
    return _tag_and_represent(changed, response, now)


@router.get(
    "/operator/pools",
    auth=MAY_OPERATE,
    response={200: Page[PoolSettingsOut]} | problems(),
    summary="List all pools with their settings",
)
def all_pools(request: HttpRequest) -> Page[PoolSettingsOut]:
    """For operators. Sorted by name."""
    now = database_now()
    return Page(data=[_represent_pool(pool, now) for pool in ResourcePool.objects.order_by("name")])


@router.post(
    "/pools/{pool_id}/hosts:drain",
    auth=MAY_TAKE_OUT,
    response={200: PoolSettingsOut} | problems(400, 404, 409, 413, 415, 422),
    summary="Drain a host",
)
def drain_host(request: HttpRequest, response: HttpResponse, pool_id: PathId, body: HostWish) -> PoolSettingsOut:
    """For operators. No pool of this Ray places new work on it; running jobs end there, or are paused and resumed.
    Idempotent. 409 `host_unknown`: the Ray was last seen without this host."""
    pool, now = the_pool(pool_id), database_now()
    drain(Operator.speaking(caller_of(request), OPERATES), pool, body.host, reason=body.reason, now=now)
    return _tag_and_represent(pool, response, now)


@router.post(
    "/pools/{pool_id}/hosts:give-back",
    auth=MAY_TAKE_OUT,
    response={200: PoolSettingsOut} | problems(400, 404, 413, 415, 422),
    summary="Return a drained host",
)
def give_host_back(request: HttpRequest, response: HttpResponse, pool_id: PathId, body: HostWish) -> PoolSettingsOut:
    """For operators. Jobs may be placed on the host again. Idempotent."""
    pool, now = the_pool(pool_id), database_now()
    give_back(Operator.speaking(caller_of(request), OPERATES), pool, body.host, now=now)
    return _tag_and_represent(pool, response, now)


def _set_fields(body: PoolPatch) -> dict[str, Any]:
    given = body.model_dump(exclude_unset=True, exclude={"moves_running_jobs"})
    nulls = [name for name, value in given.items() if value is None and name not in settings.NULLABLE]
    if nulls:
        raise Invalid(f"{', '.join(nulls)}: null is not allowed. Omit a field to keep its value.")
    return given


def _tag_and_represent(pool: ResourcePool, response: HttpResponse, now: datetime) -> PoolSettingsOut:
    tagged(response, etag_of(pool.version))
    return _represent_pool(pool, now)


def _represent_pool(pool: ResourcePool, now: datetime) -> PoolSettingsOut:
    probe = probe_of(pool)
    return PoolSettingsOut.model_construct(
        **settings_of(pool).model_dump(),
        id=pool.pk,
        probe=_represent(probe, now) if probe else None,
        drained=[DrainedOut(host=row.name, at=row.at, by=row.by, reason=row.reason) for row in drained_of(pool)],
        num_drained=devices_out(pool),
    )


def _represent(probe: ClusterProbe, now: datetime) -> ProbeOut:
    return ProbeOut(
        at=probe.at,
        seen_at=probe.seen_at,
        devices=probe.devices,
        promised=probe.promised,
        missing=probe.missing,
        is_failing=is_failing(probe, now),
        problem=describe_problem(probe) if probe.failing_since else "",
        hosts=[HostOut.model_validate(host) for host in probe.hosts],
    )
