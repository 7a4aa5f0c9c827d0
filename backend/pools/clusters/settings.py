"""An operator's changes to a pool: its size, its Ray, and the hosts that its jobs may use.

Invariants:
- only an operator creates or changes a pool; every change is in the site's log, and a change based on an old version is
  refused;
- running jobs continue: a pool does not shrink below its held or promised devices, and its Ray changes only while no
  device is held, or if running jobs are expected at the new address;
- labels and device apply to attempts that start after the change.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from django.db import IntegrityError, transaction
from django.db.models import Sum
from pydantic import AfterValidator, Field, ValidationError, model_validator

from backend.accounts.operators.acting import Operator
from backend.api.etags import etag_of, refuse_if_changed
from backend.borders.types import OneLine
from backend.errors import Conflict, FieldError, Invalid, field_errors
from backend.pools.changes import pool_changed
from backend.pools.clusters.addresses import LONGEST_NAME, is_name, refuse_address
from backend.pools.models import Reservation, ResourcePool, TeamQuota
from backend.pools.representations import MOST_DEVICES
from engine.spec.labels import LabelSelector
from engine.spec.strict import Strict, Text

SCOPE: Final = "quota:write"
MOST_GB: Final = 100_000
LONGEST_POOL_NAME: Final = 80
LONGEST_FLAVOR: Final = 40


def _check_address(url: str) -> str:
    return refuse_address(url) if url else ""


def _check_token(name: str) -> str:
    if name and not is_name(name):
        raise ValueError(
            f"must be the name of a file in LAMINAR_RAY_TOKENS_DIR: letters, digits, dot, dash and underscore, at most "
            f"{LONGEST_NAME}; got {name[:LONGEST_NAME]!r}. Write the token itself into that file"
        )
    return name


Name = Annotated[OneLine, Field(min_length=1, max_length=LONGEST_POOL_NAME)]
Flavor = Annotated[OneLine, Field(min_length=1, max_length=LONGEST_FLAVOR, description="Display name of its devices.")]
Capacity = Annotated[int, Field(ge=0, le=MOST_DEVICES, description="Devices: GPUs, or slots of CPUs.")]
Memory = Annotated[int | None, Field(ge=1, le=MOST_GB, description="Of a device, in 10^9 bytes; null: not checked.")]
IsOpen = Annotated[bool, Field(description="False: running jobs may end, and no job starts.")]
Kind = Annotated[
    Literal["gpu", "cpu"] | None,
    Field(description="gpu: jobs need GPUs. cpu: GPUs are neither used nor visible. null: GPUs if hosts have some."),
]
Labels = Annotated[LabelSelector, Field(description="Ray labels of the hosts that its jobs may use; {}: all hosts.")]
Autoscales = Annotated[bool, Field(description="Its Ray adds hosts on demand: fewer devices than promised are normal.")]
Address = Annotated[
    Text,
    Field(max_length=1_000, description="Address of its Ray's Jobs API; empty: the site's Ray."),
    AfterValidator(_check_address),
]
Token = Annotated[
    Text,
    Field(max_length=1_000, description="Name of the token's file in LAMINAR_RAY_TOKENS_DIR; empty: no token."),
    AfterValidator(_check_token),
]


class PoolSettings(Strict):
    """An operator's settings of a pool. Quotas belong to teams and have their own routes."""

    name: Name
    flavor: Flavor
    capacity: Capacity
    device_gb: Memory = None
    is_open: IsOpen = True
    device: Kind = None
    labels: Labels = Field(default_factory=dict)
    autoscales: Autoscales = False
    ray_url: Address = ""
    ray_token: Token = ""

    @model_validator(mode="after")
    def _check_autoscales(self) -> Self:
        if self.autoscales and self.device is None:
            raise ValueError("autoscales needs device, gpu or cpu, which no host can show before it has started")
        return self

    @model_validator(mode="after")
    def _check_token_address(self) -> Self:
        if self.ray_token and not self.ray_url:
            raise ValueError("ray_token needs ray_url; the site's Ray uses LAMINAR_RAY_TOKEN_FILE")
        return self

    def columns(self) -> dict[str, Any]:
        return self.model_dump() | {"device": self.device or ""}


NULLABLE: Final = frozenset({"device_gb", "device"})


class PoolInUse(Conflict):
    """Running jobs prevent this change."""

    code = "pool_in_use"


def settings_of(pool: ResourcePool) -> PoolSettings:
    values = {name: getattr(pool, name) for name in PoolSettings.model_fields}
    return PoolSettings.model_construct(**values | {"device": pool.device or None})


def merged(settings: PoolSettings, given: Mapping[str, Any]) -> PoolSettings:
    """Fields that are not given keep their values. Raises `Invalid`."""
    values = settings.model_dump() | dict(given)
    if not values["ray_url"] and "ray_token" not in given:
        values["ray_token"] = ""  # back to the site's own Ray
    return read_settings(values)


def read_settings(values: Mapping[str, Any]) -> PoolSettings:
    """Raises `Invalid`."""
    try:
        return PoolSettings.model_validate(values)
    except ValidationError as error:
        raise Invalid(errors=field_errors(error, values)) from error


def make_pool(operator: Operator, settings: PoolSettings, *, now: datetime) -> ResourcePool:
    """Raises `Conflict`."""
    with transaction.atomic():
        with _refuse_taken_name(settings.name):
            pool = ResourcePool.objects.create(**settings.columns())
        operator.record("pool.created", pool.pk, now=now, data={"after": settings.columns()})
    return pool


def change_pool(
    operator: Operator,
    pool: ResourcePool,
    settings: PoolSettings,
    *,
    moves_running_jobs: bool = False,
    if_match: str | None,
    now: datetime,
) -> ResourcePool:
    """`moves_running_jobs`: running jobs are expected at the new address, where the same Ray or its replacement
    answers. Raises `PreconditionFailed`, `PoolInUse`, `Conflict`."""
    with transaction.atomic():
        pool = ResourcePool.objects.select_for_update(of=("self",), no_key=True).get(pk=pool.pk)
        refuse_if_changed(if_match, etag_of(pool.version))
        before = settings_of(pool)
        changed = {name for name in PoolSettings.model_fields if getattr(before, name) != getattr(settings, name)}
        if not changed:
            return pool
        _refuse_conflicts(pool, before, settings, moves_running_jobs=moves_running_jobs)
        for name, value in settings.columns().items():
            setattr(pool, name, value)
        pool.version += 1
        with _refuse_taken_name(settings.name):
            pool.save()
        pool_changed()(pool.pk, now)
        data: dict[str, Any] = {"before": _describe(before, changed), "after": _describe(settings, changed)}
        if moves_running_jobs:
            data["moves_running_jobs"] = True
        operator.record("pool.changed", pool.pk, now=now, data=data)
    return pool


def _describe(settings: PoolSettings, names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.columns().items() if name in names}


@contextmanager
def _refuse_taken_name(name: str) -> Iterator[None]:
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        message = f"another pool is named {name!r}; pool names must be unique"
        place = FieldError(pointer="/name", code="name_taken", message=message)
        raise Conflict(errors=[place], code="name_taken") from error


def _refuse_conflicts(
    pool: ResourcePool, before: PoolSettings, settings: PoolSettings, *, moves_running_jobs: bool
) -> None:
    live = Reservation.objects.filter(pool=pool, released_at__isnull=True)
    held = live.aggregate(sum=Sum("devices"))["sum"] or 0
    promised = TeamQuota.objects.filter(pool=pool).aggregate(sum=Sum("nominal"))["sum"] or 0
    least = max(held, promised)
    if settings.capacity < min(least, before.capacity):
        message = (
            f"must be at least {least}: jobs hold {held} devices, and quotas promise {promised} to teams; got "
            f"{settings.capacity}. First lower the quotas, or close the pool and wait"
        )
        raise PoolInUse(errors=[FieldError(pointer="/capacity", code="pool_in_use", message=message)])
    if settings.ray_url != before.ray_url and held and not moves_running_jobs:
        message = (
            f"jobs hold {held} devices of the present Ray. Close the pool and wait until no job runs, or send "
            "moves_running_jobs if running jobs are to be found at the new address"
        )
        raise PoolInUse(errors=[FieldError(pointer="/ray_url", code="pool_in_use", message=message)])
