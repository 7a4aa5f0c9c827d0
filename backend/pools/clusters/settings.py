"""Changes of a pool by an operator: its size, its Ray, the hosts of it that its jobs may use.

Invariants:
- only an operator makes or changes a pool; every change is in the site's log, and whoever saw another version is told;
- what runs goes on: a pool does not shrink below what is held or promised of it, and its Ray changes while nothing is
  held, or because all that runs is to be looked for at the new address;
- what follows from labels and device holds for attempts that begin after the change.
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


def _address(url: str) -> str:
    return refuse_address(url) if url else ""


def _token(name: str) -> str:
    if name and not is_name(name):
        raise ValueError(
            f"the name of a file in LAMINAR_RAY_TOKENS_DIR: letters, digits, dot, dash and underscore, at most "
            f"{LONGEST_NAME}; got {name[:LONGEST_NAME]!r}. The token itself is written into that file"
        )
    return name


Name = Annotated[OneLine, Field(min_length=1, max_length=LONGEST_POOL_NAME)]
Flavor = Annotated[OneLine, Field(min_length=1, max_length=LONGEST_FLAVOR, description="What people call its devices.")]
Capacity = Annotated[int, Field(ge=0, le=MOST_DEVICES, description="Devices: GPUs, or slots of CPUs.")]
Memory = Annotated[int | None, Field(ge=1, le=MOST_GB, description="Of a device, in 10^9 bytes; null: not judged.")]
IsOpen = Annotated[bool, Field(description="False: what runs may end, and nothing starts.")]
Kind = Annotated[
    Literal["gpu", "cpu"] | None,
    Field(description="gpu: nothing runs without one. cpu: none is taken or seen. null: GPUs where hosts have some."),
]
Labels = Annotated[
    LabelSelector, Field(description="Ray's labels of the hosts that its jobs may use; {}: all of them.")
]
Autoscales = Annotated[bool, Field(description="Its Ray adds hosts by itself: fewer devices than promised are no gap.")]
Address = Annotated[
    Text, Field(max_length=1_000, description="Of its Ray's Jobs API; empty: the site's own."), AfterValidator(_address)
]
Token = Annotated[
    Text,
    Field(
        max_length=1_000, description="The name of its file in LAMINAR_RAY_TOKENS_DIR; empty: that Ray asks for none."
    ),
    AfterValidator(_token),
]


class PoolSettings(Strict):
    """All that an operator says of a pool. Quotas are the teams' and have routes of their own."""

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
    def _says_what_is_to_come(self) -> Self:
        if self.autoscales and self.device is None:
            raise ValueError("autoscales needs device, gpu or cpu: before a host has come nothing else says which")
        return self

    @model_validator(mode="after")
    def _token_has_an_address(self) -> Self:
        if self.ray_token and not self.ray_url:
            raise ValueError("ray_token belongs to ray_url; the site's own Ray has the token of LAMINAR_RAY_TOKEN_FILE")
        return self

    def columns(self) -> dict[str, Any]:
        return self.model_dump() | {"device": self.device or ""}


NULLABLE: Final = frozenset({"device_gb", "device"})


class PoolInUse(Conflict):
    """What runs in the pool does not fit the change."""

    code = "pool_in_use"


def settings_of(pool: ResourcePool) -> PoolSettings:
    told = {name: getattr(pool, name) for name in PoolSettings.model_fields}
    return PoolSettings.model_construct(**told | {"device": pool.device or None})


def merged(settings: PoolSettings, given: Mapping[str, Any]) -> PoolSettings:
    """What is not given stays. Raises `Invalid`."""
    told = settings.model_dump() | dict(given)
    if not told["ray_url"] and "ray_token" not in given:
        told["ray_token"] = ""  # back to the site's own Ray
    return read_settings(told)


def read_settings(told: Mapping[str, Any]) -> PoolSettings:
    """Raises `Invalid`."""
    try:
        return PoolSettings.model_validate(told)
    except ValidationError as error:
        raise Invalid(errors=field_errors(error, told)) from error


def make_pool(operator: Operator, settings: PoolSettings, *, now: datetime) -> ResourcePool:
    """Raises `Conflict`."""
    with transaction.atomic():
        with _name_of_its_own(settings.name):
            pool = ResourcePool.objects.create(**settings.columns())
        operator.record("pool.created", pool.pk, now=now, data={"after": settings.columns()})
    return pool


def change_pool(
    operator: Operator,
    pool: ResourcePool,
    settings: PoolSettings,
    *,
    moves_what_runs: bool = False,
    if_match: str | None,
    now: datetime,
) -> ResourcePool:
    """`moves_what_runs`: its Ray is the same at another address, or takes the other's place, and what runs is looked
    for there. Raises `PreconditionFailed`, `PoolInUse`, `Conflict`."""
    with transaction.atomic():
        pool = ResourcePool.objects.select_for_update(of=("self",), no_key=True).get(pk=pool.pk)
        refuse_if_changed(if_match, etag_of(pool.version))
        before = settings_of(pool)
        changed = {name for name in PoolSettings.model_fields if getattr(before, name) != getattr(settings, name)}
        if not changed:
            return pool
        _refuse_what_does_not_fit(pool, before, settings, moves_what_runs=moves_what_runs)
        for name, value in settings.columns().items():
            setattr(pool, name, value)
        pool.version += 1
        with _name_of_its_own(settings.name):
            pool.save()
        pool_changed()(pool.pk, now)
        data: dict[str, Any] = {"before": _told(before, changed), "after": _told(settings, changed)}
        if moves_what_runs:
            data["moves_what_runs"] = True
        operator.record("pool.changed", pool.pk, now=now, data=data)
    return pool


def _told(settings: PoolSettings, names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.columns().items() if name in names}


@contextmanager
def _name_of_its_own(name: str) -> Iterator[None]:
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        message = f"another pool is called {name!r}; every pool has a name of its own"
        place = FieldError(pointer="/name", code="name_taken", message=message)
        raise Conflict(errors=[place], code="name_taken") from error


def _refuse_what_does_not_fit(
    pool: ResourcePool, before: PoolSettings, settings: PoolSettings, *, moves_what_runs: bool
) -> None:
    live = Reservation.objects.filter(pool=pool, released_at__isnull=True)
    held = live.aggregate(sum=Sum("devices"))["sum"] or 0
    promised = TeamQuota.objects.filter(pool=pool).aggregate(sum=Sum("nominal"))["sum"] or 0
    least = max(held, promised)
    if settings.capacity < min(least, before.capacity):
        message = (
            f"at least {least}: jobs hold {held} devices, and quotas promise {promised} to teams; got "
            f"{settings.capacity}. Lower the quotas, or close the pool and wait, first"
        )
        raise PoolInUse(errors=[FieldError(pointer="/capacity", code="pool_in_use", message=message)])
    if settings.ray_url != before.ray_url and held and not moves_what_runs:
        message = (
            f"jobs hold {held} devices of the Ray that it has. Close the pool and wait until nothing runs, or send "
            "moves_what_runs if what runs there is to be looked for at the new address"
        )
        raise PoolInUse(errors=[FieldError(pointer="/ray_url", code="pool_in_use", message=message)])
