"""Spending of the month, by team, project and user: from reservations and prices alone, minus credits.

Invariant: decimals are exact, and the totals equal what usage bills.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from django.db import connection

from backend.budgets.models import SpendingLimit, Unit
from backend.pools.budgets import month_of
from backend.pools.models import Reservation, ReservationRole

# A reservation is priced per interval of constant price, as in `usage.split`.
_HELD = """
WITH price AS (
    SELECT pool_id, per_device_second, valid_from,
           lead(valid_from) OVER (PARTITION BY pool_id ORDER BY valid_from) AS valid_until
    FROM usage_poolprice
), held AS (
    SELECT r.team_id, j.project_id, j.created_by_id, r.pool_id, r.devices,
           greatest(r.created_at, %(since)s) AS began, least(coalesce(r.released_at, %(now)s), %(now)s) AS ended
    FROM pools_reservation r JOIN jobs_job j ON j.id = r.job_id
    WHERE r.team_id = ANY(%(teams)s) AND r.created_at < %(now)s
      AND (r.released_at IS NULL OR r.released_at > %(since)s)
)
SELECT team_id, project_id, created_by_id, sum(devices * extract(epoch FROM ended - began)),
    coalesce(sum(devices * (
        SELECT sum(extract(epoch FROM least(ended, coalesce(valid_until, ended)) - greatest(began, valid_from))
                   * per_device_second)
        FROM price WHERE price.pool_id = held.pool_id AND valid_from < ended
          AND (valid_until IS NULL OR valid_until > began))), 0)
FROM held GROUP BY team_id, project_id, created_by_id
"""
_CREDITED = """
SELECT team_id, project_id, user_id, sum(credited_us) / 1e6, sum(cost_credited)
FROM usage_usageslice WHERE team_id = ANY(%(teams)s) AND day >= %(day)s AND credited_us > 0
GROUP BY team_id, project_id, user_id
"""
# Prices that begin later do not count: a started job is not stopped because of a later price.
_PRICES = """
SELECT DISTINCT ON (pool_id) pool_id, per_device_second FROM usage_poolprice
WHERE valid_from <= %(now)s ORDER BY pool_id, valid_from DESC
"""


class Spender(NamedTuple):
    team: str
    project: str
    person: int


@dataclass(slots=True)
class Spent:
    """In device-seconds and in money; `committed` is the most that running jobs can still use."""

    seconds: Decimal = Decimal(0)
    money: Decimal = Decimal(0)
    committed_seconds: Decimal = Decimal(0)
    committed_money: Decimal = Decimal(0)

    def of(self, unit: str) -> tuple[Decimal, Decimal]:
        """Spent and committed."""
        money = unit == Unit.MONEY
        return (self.money, self.committed_money) if money else (self.seconds, self.committed_seconds)


Spending = dict[Spender, Spent]


def spending_of(teams: Collection[str], *, now: datetime) -> Spending:
    """Since the beginning of the month."""
    spending: Spending = defaultdict(Spent)
    since = month_of(now)
    values: dict[str, Any] = {"teams": list(teams), "now": now, "since": since, "day": since.date()}
    with connection.cursor() as db:
        db.execute(_HELD, values)
        for team, project, person, seconds, money in db.fetchall():
            row = spending[Spender(team, project, person)]
            row.seconds, row.money = Decimal(seconds), Decimal(money)
        db.execute(_CREDITED, values)
        for team, project, person, seconds, money in db.fetchall():
            row = spending[Spender(team, project, person)]
            row.seconds, row.money = row.seconds - Decimal(seconds), row.money - Decimal(money)
    _add_committed(spending, teams, now=now)
    return spending


def prices_now(now: datetime) -> dict[str, Decimal]:
    """Per device-second, by pool; a pool without a price is free."""
    with connection.cursor() as db:
        db.execute(_PRICES, {"now": now})
        return {pool: Decimal(price) for pool, price in db.fetchall()}


def spent_under(limit: SpendingLimit, spending: Spending) -> tuple[Decimal, Decimal]:
    """Spent and committed, in the limit's unit."""
    spent, committed = Decimal(0), Decimal(0)
    for who, row in spending.items():
        if who.team == limit.team_id and (
            limit.is_of_team or who.project == limit.project_id or who.person == limit.person_id
        ):
            more, promised = row.of(limit.unit)
            spent, committed = spent + more, committed + promised
    return max(Decimal(0), spent), committed


def _add_committed(spending: Spending, teams: Collection[str], *, now: datetime) -> None:
    """An elastic replica ends with its job."""
    live = Reservation.objects.filter(team_id__in=teams, released_at__isnull=True)
    columns = ("job_id", "role", "devices", "created_at", "pool_id", "team_id")
    of_job = ("job__max_runtime_s", "job__project_id", "job__created_by_id")
    rows = list(live.values_list(*columns, *of_job))
    began = {job: created for job, role, _, created, *_ in rows if role != ReservationRole.ELASTIC}
    prices = prices_now(now) if rows else {}
    for job, _, devices, created, pool, team, longest, project, person in rows:
        rest = max(0.0, longest - (now - began.get(job, created)).total_seconds())
        seconds = devices * Decimal(rest)
        row = spending[Spender(team, project, person)]
        row.committed_seconds += seconds
        row.committed_money += seconds * prices.get(pool, Decimal(0))
