"""Budgets: the device time that a team may spend in a month, has spent, and has committed to running jobs.

    left = limit - spent since the month began - longest remaining time of running jobs

Invariant: all amounts are derived from reservations. A job starts only if its maximum runtime fits what is left, so no
started job is ever stopped because of a budget.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import connection

from backend.pools.models import Budget, Reservation, ReservationRole

_SPENT = """
SELECT team_id, SUM(devices * EXTRACT(EPOCH FROM
    LEAST(COALESCE(released_at, %(now)s), %(now)s) - GREATEST(created_at, %(since)s)))
FROM pools_reservation
WHERE team_id = ANY(%(teams)s) AND created_at < %(now)s AND (released_at IS NULL OR released_at > %(since)s)
GROUP BY team_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """A team's GPU-seconds. `left` is None without a limit."""

    limit: int | None
    spent: float
    committed: float
    version: int

    @property
    def left(self) -> float | None:
        return None if self.limit is None else self.limit - self.spent - self.committed


def month_of(now: datetime) -> datetime:
    """The beginning of the month."""
    return now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def budget_states(teams: Collection[str], *, now: datetime, lock: bool = False) -> dict[str, BudgetState]:
    """For each of the teams. `lock` serializes pools that schedule jobs of the same team."""
    rows = Budget.objects.filter(team_id__in=teams).order_by("team_id")
    limits = {row.team_id: row for row in (rows.select_for_update(no_key=True) if lock else rows)}
    spent = _sum_spent(list(teams), now)
    committed = _sum_committed(teams, now)
    return {
        team: BudgetState(
            limit=limits[team].gpu_seconds if team in limits else None,
            spent=spent.get(team, 0.0),
            committed=committed.get(team, 0.0),
            version=limits[team].version if team in limits else 0,
        )
        for team in teams
    }


def budgeted(teams: Collection[str]) -> list[str]:
    return list(Budget.objects.filter(team_id__in=teams).order_by("team_id").values_list("team_id", flat=True))


def _sum_spent(teams: list[str], now: datetime) -> dict[str, float]:
    with connection.cursor() as db:
        db.execute(_SPENT, {"teams": teams, "now": now, "since": month_of(now)})
        return {team: float(seconds) for team, seconds in db.fetchall()}


def _sum_committed(teams: Collection[str], now: datetime) -> dict[str, float]:
    """An elastic replica ends with its job, which began with its required devices."""
    live = Reservation.objects.filter(team_id__in=teams, released_at__isnull=True)
    rows = list(live.values_list("team_id", "job_id", "role", "devices", "created_at", "job__max_runtime_s"))
    began = {job: created for _, job, role, _, created, _ in rows if role != ReservationRole.ELASTIC}
    seconds_of: dict[str, float] = {}
    for team, job, _, devices, created, max_runtime_s in rows:
        rest = max_runtime_s - (now - began.get(job, created)).total_seconds()
        seconds_of[team] = seconds_of.get(team, 0.0) + devices * max(0.0, rest)
    return seconds_of
