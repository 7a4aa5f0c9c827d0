"""Usage reports of a team, grouped as requested.

Invariants:
- settled slices and live use (running jobs, up to now) are added up; no reservation is in both;
- groups add up to the total, and so do the kinds of each group: integers until the last step.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any

from django.db.models import F, Q, QuerySet, Sum

from backend.accounts.models import ApiKey, Project, Team, User
from backend.jobs.models import Job
from backend.pools.models import Reservation
from backend.usage.models import UsageSlice
from backend.usage.services import STORED, kinds_of, slices_of, stored_number, unsettled
from backend.usage.split import Kinds


class GroupBy(StrEnum):
    TEAM = "team"
    PROJECT = "project"
    USER = "user"
    JOB = "job"
    DAY = "day"
    KEY = "key"


_COLUMN: Mapping[GroupBy, str] = {
    GroupBy.TEAM: "team_id",
    GroupBy.PROJECT: "project_id",
    GroupBy.USER: "user_id",
    GroupBy.JOB: "job_id",
    GroupBy.DAY: "day",
    GroupBy.KEY: "key",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageGroup:
    group: str
    """An id or a day. Empty for jobs submitted without an API key."""
    label: str
    kinds: Kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevices:
    """One reservation of a job."""

    role: str
    devices: int
    start: datetime
    end: datetime | None
    kinds: Kinds


def usage_of(team: Team, group_by: GroupBy, *, first: date, last: date, now: datetime) -> list[UsageGroup]:
    """Usage of the days `first` to `last`, inclusive, UTC; days in order, other groups by id."""
    slices = UsageSlice.objects.filter(team=team, day__range=(first, last))
    sums: dict[str, Kinds] = defaultdict(Kinds)
    for row in _summed(slices, _COLUMN[group_by]):
        sums[str(row.pop("group"))] += Kinds(**row)
    for piece in _unsettled(team, first=first, last=last, now=now):
        sums[str(getattr(piece, _COLUMN[group_by]))] += kinds_of(piece)
    labels = _labels(team, group_by, sums)
    return [UsageGroup(group=key, label=labels.get(key, key), kinds=sums[key]) for key in sorted(sums)]


def usage_of_job(job: Job, *, now: datetime) -> list[HeldDevices]:
    """Every reservation of the job, oldest first."""
    rows = list(Reservation.objects.filter(job=job).order_by("created_at", "role", "pk"))
    slices = list(UsageSlice.objects.filter(job=job))
    settled = {row.reservation_id for row in slices}
    slices += slices_of([row for row in rows if row.pk not in settled], now=now)
    sums: dict[int, Kinds] = defaultdict(Kinds)
    for piece in slices:
        sums[piece.reservation_id] += kinds_of(piece)
    return [
        HeldDevices(role=row.role, devices=row.devices, start=row.created_at, end=row.released_at, kinds=sums[row.pk])
        for row in rows
    ]


def _summed(slices: QuerySet[UsageSlice], column: str) -> Sequence[dict[str, Any]]:
    """Per group: its name as `group`, and the fields of `Kinds`."""
    totals = {name: Sum(stored) for name, stored in STORED.items()}
    rows: Sequence[dict[str, Any]] = slices.values(group=F(column)).annotate(**totals).order_by()  # type: ignore[assignment]
    return [
        {name: value if name == "group" else stored_number(name, value) for name, value in row.items()} for row in rows
    ]


def _unsettled(team: Team, *, first: date, last: date, now: datetime) -> list[UsageSlice]:
    """Few rows: reservations held now, and those released since the last settling."""
    begin = datetime.combine(first, time(), UTC)
    end = datetime.combine(last, time(), UTC) + timedelta(days=1)
    overlaps = Q(released_at__isnull=True) | Q(released_at__gte=begin)
    rows = list(unsettled(Reservation.objects.filter(overlaps, team=team, created_at__lt=end)))
    return [piece for piece in slices_of(rows, now=now) if first <= piece.day <= last]


def _labels(team: Team, group_by: GroupBy, keys: Mapping[str, Kinds]) -> Mapping[str, str]:
    match group_by:
        case GroupBy.TEAM:
            return {team.pk: team.name}
        case GroupBy.PROJECT:
            return dict(Project.objects.filter(pk__in=keys).values_list("id", "name"))
        case GroupBy.USER:
            return {str(pk): email for pk, email in User.objects.filter(pk__in=keys).values_list("pk", "email")}
        case GroupBy.JOB:
            return dict(Job.objects.filter(pk__in=keys).values_list("id", "name"))
        case GroupBy.KEY:
            names = dict(ApiKey.objects.filter(pk__in=keys, team=team).values_list("id", "name"))
            return {"": "no API key", **names}
        case GroupBy.DAY:
            return {}
