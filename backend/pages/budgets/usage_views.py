"""A team's device usage: GPU-hours by kind and their cost, by day, job, person, project or key, as in the API.

Invariants:
- the numbers come from `usage_of`, which sums reservations; this module counts nothing;
- the table and the file have the same groups; the file has all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timedelta
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.accounts.models import Team
from backend.borders.types import read_day
from backend.clock import database_now
from backend.errors import Invalid
from backend.jobs.models import Job
from backend.pages import curl
from backend.pages.budgets.views import budgets_shown
from backend.pages.team.team_views import acting_in, frame_of
from backend.pools.selectors import pools_of
from backend.usage.api import as_csv, requested_days
from backend.usage.pricing.money import amount_of, shown
from backend.usage.pricing.prices import price_at, site_currency
from backend.usage.report import GroupBy, UsageGroup, usage_of
from backend.usage.split import Kinds

ROWS_A_PAGE: Final = 50
GROUPS: Final[Mapping[GroupBy, str]] = {
    GroupBy.DAY: "day",
    GroupBy.USER: "person",
    GroupBy.JOB: "job",
    GroupBy.PROJECT: "project",
    GroupBy.KEY: "key",
}
KINDS: Final[Mapping[str, str]] = {
    "useful": "Training and generation that counted.",
    "startup": "Until an attempt was ready.",
    "stale": "Spent on samples that were too old to be trained on.",
    "fault": "Work lost since the last checkpoint, restarts, and repeated steps.",
    "idle": "While the job was pausing or stopping.",
}
_MICROSECONDS_AN_HOUR: Final = 3.6e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """Device-hours: GPU-hours, or slot-hours in a CPU pool."""

    held: float
    useful: float
    startup: float
    stale: float
    fault: float
    idle: float
    credited: float
    billed: float

    @classmethod
    def of(cls, kinds: Kinds) -> "Hours":
        seconds = {each.name: getattr(kinds, each.name) for each in fields(cls) if each.name != "billed"}
        billed = kinds.held - kinds.credited
        return cls(**{name: value / _MICROSECONDS_AN_HOUR for name, value in (seconds | {"billed": billed}).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    group: str
    label: str
    hours: Hours
    cost: str
    """Billed, in the site's currency."""
    is_shown_elsewhere: bool = False
    """Whether the group is a job with a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A segment of the bar of kinds; per cent."""

    kind: str
    about: str
    hours: float
    x: float
    width: float


@require_safe
@never_cache
@login_required
def usage(request: HttpRequest) -> HttpResponse:
    """With `format=csv`, the table as a file."""
    acting, now = acting_in(request), database_now()
    group_by = _group_by(request.GET.get("by", ""))
    wrong, first, last = _range(request, today=now.date())
    groups = usage_of(acting.team, group_by, first=first, last=last, now=now)
    currency = site_currency()
    if request.GET.get("format") == "csv" and not wrong:
        return as_csv(groups, group_by, first, last, currency=currency)
    page = Paginator(_rows(groups, group_by), ROWS_A_PAGE).get_page(request.GET.get("page"))
    total = sum((group.kinds for group in groups), Kinds())
    by_day = group_by == GroupBy.DAY
    days = groups if by_day else usage_of(acting.team, GroupBy.DAY, first=first, last=last, now=now)
    asked = {"group_by": str(group_by), "from": str(first), "to": str(last)}
    context = (
        frame_of(acting)
        | budgets_shown(acting, currency, now=now)
        | {
            "groups": [(each, label) for each, label in GROUPS.items()],
            "group_by": group_by,
            "first": first,
            "last": last,
            "wrong": wrong,
            "ranges": _ranges(now.date()),
            "page": page,
            "rows": _with_pages(list(page.object_list), group_by, acting.team),
            "total": Hours.of(total),
            "currency": currency,
            "total_cost": cost_of(total),
            "credited_cost": shown(amount_of(total.cost_credited)) if total.cost_credited else "",
            "prices": _prices(acting.team, now) if currency else [],
            "parts": parts_of(total),
            "kinds": list(KINDS.items()),
            "days": _chart(days, first, last),
            "curl": curl.get("/usage", **asked),
            "now": now,
        }
    )
    return render(request, "pages/team/usage.html", context, status=422 if wrong else 200)


def _group_by(text: str) -> GroupBy:
    return next((each for each in GROUPS if each == text), GroupBy.DAY)


def _range(request: HttpRequest, *, today: date) -> tuple[str, date, date]:
    """The error in the requested dates, and the dates shown."""
    try:
        asked = [read_day(text) if (text := request.GET.get(name, "")) else None for name in ("from", "to")]
        first, last = requested_days(asked[0], asked[1], today=today)
    except Invalid as refusal:  # a ValueError as well, so it comes first
        place = {"/query/from": "The first day", "/query/to": "The last day"}
        errors = [f"{place[error.pointer]} {error.message}." for error in refusal.errors]
        return " ".join(errors), today.replace(day=1), today
    except ValueError:
        return "Enter dates such as 2026-01-31.", today.replace(day=1), today
    return "", first, last


def _ranges(today: date) -> list[tuple[str, date, date]]:
    month = today.replace(day=1)
    before = month - timedelta(days=1)
    return [
        ("this month", month, today),
        ("last month", before.replace(day=1), before),
        ("90 days", today - timedelta(days=89), today),
        ("a year", today - timedelta(days=364), today),
    ]


def _rows(groups: Sequence[UsageGroup], group_by: GroupBy) -> list[Row]:
    """Days: newest first; all other groups: largest first."""
    rows = [
        Row(group=each.group, label=each.label, hours=Hours.of(each.kinds), cost=cost_of(each.kinds)) for each in groups
    ]
    if group_by == GroupBy.DAY:
        return rows[::-1]
    return sorted(rows, key=lambda row: (-row.hours.held, row.label))


def _with_pages(rows: Sequence[Row], group_by: GroupBy, team: Team) -> list[Row]:
    if group_by != GroupBy.JOB:
        return list(rows)
    there = set(Job.objects.filter(team=team, pk__in=[row.group for row in rows]).values_list("pk", flat=True))
    return [replace(row, is_shown_elsewhere=row.group in there) for row in rows]


def cost_of(kinds: Kinds) -> str:
    return shown(amount_of(kinds.cost_billed))


def _prices(team: Team, now: datetime) -> list[tuple[str, str]]:
    """Per device-hour, by pool."""
    return [(pool.name, shown(3_600 * price_at(pool, now))) for pool in pools_of(team)]


def parts_of(total: Kinds) -> list[Part]:
    parts, x = [], 0.0
    for kind, about in KINDS.items():
        size = getattr(total, kind)
        width = 100 * size / total.held if total.held else 0.0
        parts.append(Part(kind=kind, about=about, hours=size / _MICROSECONDS_AN_HOUR, x=x, width=width))
        x += width
    return parts


def _chart(groups: Sequence[UsageGroup], first: date, last: date) -> dict[str, Any]:
    """Every day of the range, including days without usage."""
    by_day = {each.group: each.kinds for each in groups}
    days = [str(first + timedelta(days=each)) for each in range((last - first).days + 1)]
    hours = [Hours.of(by_day.get(day, Kinds())) for day in days]
    return {"days": days, "kinds": {kind: [round(getattr(each, kind), 4) for each in hours] for kind in KINDS}}
