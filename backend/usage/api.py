"""REST: usage of devices. Shape in, call, shape out."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Literal, Self

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.api.problems import problems
from backend.borders.types import Day, PathId
from backend.clock import database_now
from backend.errors import FieldError, Invalid
from backend.jobs.selectors import the_job
from backend.usage.credits.crediting import credits_of
from backend.usage.csv_table import csv_text
from backend.usage.pricing.money import amount_of, exact_text
from backend.usage.pricing.prices import site_currency
from backend.usage.report import GroupBy, HeldDevices, UsageGroup, usage_of, usage_of_job
from backend.usage.split import Kinds
from engine.spec.strict import Text

router = Router(tags=["Usage"])

LONGEST_RANGE = timedelta(days=366)
MOST_GROUPS = 1_000
YEARS = range(2000, 2200)
_SECONDS = "Device-seconds"


class KindsOut(BaseModel):
    """Kinds of use in device-seconds. Five add up to `held`; `billed` is `held` minus `credited`."""

    held: float = Field(description=f"{_SECONDS} of reservations: devices times seconds.")
    startup: float = Field(description=f"{_SECONDS} until an attempt was ready.")
    useful: float
    stale: float = Field(description="Otherwise useful time, by the share of samples dropped as too old.")
    fault: float = Field(description="Work lost since the last checkpoint, restarts, and steps done again.")
    idle: float = Field(description="While the job was pausing or stopping.")
    credited: float = Field(description="The part of `fault` caused by the platform. It is not billed.")
    billed: float

    @classmethod
    def of(cls, kinds: Kinds) -> Self:
        return cls(
            held=kinds.held / 1e6,
            startup=kinds.startup / 1e6,
            useful=kinds.useful / 1e6,
            stale=kinds.stale / 1e6,
            fault=kinds.fault / 1e6,
            idle=kinds.idle / 1e6,
            credited=kinds.credited / 1e6,
            billed=(kinds.held - kinds.credited) / 1e6,
        )


class CostOut(BaseModel):
    """Exact amounts, by the prices at the time of use. Devices without a price are free."""

    currency: str = Field(description="ISO 4217.")
    held: str = Field(description="For all device-seconds held, as a decimal.")
    credited: str = Field(description="For `credited`; not billed.")
    billed: str

    @classmethod
    def of(cls, kinds: Kinds, currency: str) -> "CostOut | None":
        """None if the site has no prices."""
        if not currency:
            return None
        amounts = (kinds.cost, kinds.cost_credited, kinds.cost_billed)
        held, credited, billed = (exact_text(amount_of(attos)) for attos in amounts)
        return cls(currency=currency, held=held, credited=credited, billed=billed)


class UsageGroupOut(BaseModel):
    group: str = Field(description="An id or a day. With group_by=key, empty for jobs submitted without a key.")
    label: str
    seconds: KindsOut
    cost: CostOut | None = Field(None, description="Null if this site has no prices.")


class UsageOut(BaseModel):
    group_by: GroupBy
    first: date
    last: date
    as_of: datetime = Field(description="Devices still held count up to this moment.")
    total: KindsOut
    total_cost: CostOut | None = None
    data: list[UsageGroupOut]
    has_more: bool = False
    next_after: str | None = Field(None, description="Pass as `after` to get the next page.")


class HeldDevicesOut(BaseModel):
    role: str
    devices: int
    start: datetime
    end: datetime | None
    seconds: KindsOut
    cost: CostOut | None = None


class GivenCreditOut(BaseModel):
    attempt: int
    reason: str
    given_at: datetime


class JobUsageOut(BaseModel):
    as_of: datetime
    total: KindsOut
    total_cost: CostOut | None = None
    credits: list[GivenCreditOut] = Field([], description="Attempts that the platform's operator credited by hand.")
    data: list[HeldDevicesOut] = Field(description="Every reservation of the job, oldest first.")


@router.get(
    "/usage",
    auth=ApiKeyAuth("usage:read"),
    response={200: UsageOut} | problems(422),
    summary="Get the team's usage",
    openapi_extra={"responses": {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}},
)
def usage(
    request: HttpRequest,
    group_by: Annotated[GroupBy, Query()] = GroupBy.JOB,
    first: Annotated[Day | None, Query(alias="from", description="UTC. Default: the first of this month.")] = None,
    last: Annotated[Day | None, Query(alias="to", description="Inclusive. Default: today.")] = None,
    after: Annotated[Text | None, Query(max_length=64, description="`next_after` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_GROUPS)] = MOST_GROUPS,
    format: Annotated[Literal["json", "csv"] | None, Query(description="Or send Accept: text/csv.")] = None,
) -> UsageOut | HttpResponse:
    """Device-seconds by kind, for all devices that jobs held, with their cost. CSV has all groups in one table."""
    now, currency = database_now(), site_currency()
    first, last = requested_days(first, last, today=now.date())
    groups = usage_of(caller_of(request).team, group_by, first=first, last=last, now=now)
    if format == "csv" or (format is None and request.headers.get("Accept", "").startswith("text/csv")):
        return as_csv(groups, group_by, first, last, currency=currency)
    rest = [group for group in groups if after is None or group.group > after]
    page, total = rest[:limit], sum((group.kinds for group in groups), Kinds())
    return UsageOut(
        group_by=group_by,
        first=first,
        last=last,
        as_of=now,
        total=KindsOut.of(total),
        total_cost=CostOut.of(total, currency),
        data=[_group_out(row, currency) for row in page],
        has_more=len(rest) > limit,
        next_after=page[-1].group if len(rest) > limit else None,
    )


@router.get(
    "/jobs/{job_id}/usage",
    auth=ApiKeyAuth("usage:read"),
    response={200: JobUsageOut} | problems(404),
    summary="Get a job's usage",
)
def job_usage(request: HttpRequest, job_id: PathId) -> JobUsageOut:
    """Device-seconds by kind for each reservation. Devices still held count up to now."""
    now, currency = database_now(), site_currency()
    job = the_job(caller_of(request).team, job_id)
    held = usage_of_job(job, now=now)
    total = sum((row.kinds for row in held), Kinds())
    return JobUsageOut(
        as_of=now,
        total=KindsOut.of(total),
        total_cost=CostOut.of(total, currency),
        credits=[
            GivenCreditOut(attempt=each.attempt.n, reason=each.reason, given_at=each.given_at)
            for each in credits_of(job)
        ],
        data=[_held_out(row, currency) for row in held],
    )


def _group_out(row: UsageGroup, currency: str) -> UsageGroupOut:
    return UsageGroupOut(
        group=row.group, label=row.label, seconds=KindsOut.of(row.kinds), cost=CostOut.of(row.kinds, currency)
    )


def _held_out(row: HeldDevices, currency: str) -> HeldDevicesOut:
    return HeldDevicesOut(
        role=row.role,
        devices=row.devices,
        start=row.start,
        end=row.end,
        seconds=KindsOut.of(row.kinds),
        cost=CostOut.of(row.kinds, currency),
    )


def requested_days(first: date | None, last: date | None, *, today: date) -> tuple[date, date]:
    last = last or max(today, first or today)
    first = first or last.replace(day=1)
    for name, day in (("from", first), ("to", last)):
        if day.year not in YEARS:
            message = f"must be in the years {YEARS.start} to {YEARS.stop - 1}; got {day}"
            raise Invalid(errors=[FieldError(pointer=f"/query/{name}", code="year", message=message)])
    if last < first:
        error = FieldError(
            pointer="/query/to", code="order", message=f"must not be before from, which is {first}; got {last}"
        )
        raise Invalid(errors=[error])
    if last - first > LONGEST_RANGE:
        error = FieldError(
            pointer="/query/to", code="range", message=f"must be at most {LONGEST_RANGE.days} days after from"
        )
        raise Invalid(errors=[error])
    return first, last


def as_csv(groups: Sequence[UsageGroup], group_by: GroupBy, first: date, last: date, *, currency: str) -> HttpResponse:
    """If the site has prices, the last columns are costs."""
    kinds, costs = list(KindsOut.model_fields), ["held", "credited", "billed"] if currency else []
    rows = [
        [
            group.group,
            group.label,
            *(getattr(KindsOut.of(group.kinds), kind) for kind in kinds),
            *(getattr(CostOut.of(group.kinds, currency), cost) for cost in costs),
        ]
        for group in groups
    ]
    header = [str(group_by), "label", *(f"{kind}_gpu_seconds" for kind in kinds)]
    text = csv_text([*header, *(f"{cost}_{currency}" for cost in costs)], rows)
    response = HttpResponse(text, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="usage-by-{group_by}-{first}-{last}.csv"'
    return response
