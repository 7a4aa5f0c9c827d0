"""What limits leave for jobs of a pool, in the scheduler's unit.

Invariant: amounts are device-seconds of that pool: money is divided by the pool's current price, and jobs of a
free pool have no limit of money.
"""

from collections.abc import Collection
from datetime import datetime

from backend.budgets.models import SpendingLimit, Unit
from backend.budgets.spending import prices_now, spending_of, spent_under
from backend.pools.decision.views import SpendingLimitView
from backend.pools.models import ResourcePool
from backend.pools.spending_limits import SpendingLimits


def spending_limits(pool: ResourcePool, teams: Collection[str], now: datetime, lock: bool) -> SpendingLimits:
    rows = SpendingLimit.objects.filter(team_id__in=teams).order_by("pk").select_related("team", "project", "person")
    limits = list(rows.select_for_update(of=("self",), no_key=True) if lock else rows)
    if not limits:
        return SpendingLimits()
    spending = spending_of({limit.team_id for limit in limits}, now=now)
    price = prices_now(now).get(pool.pk)
    left: dict[str, SpendingLimitView] = {}
    for limit in limits:
        if limit.unit == Unit.MONEY and not price:
            continue
        spent, committed = spent_under(limit, spending)
        rest = limit.amount - spent - committed
        seconds = rest / price if limit.unit == Unit.MONEY and price else rest
        left[str(limit.pk)] = SpendingLimitView(left=float(seconds), label=label_of(limit))
    counted = [limit for limit in limits if str(limit.pk) in left]
    return SpendingLimits(
        left=left,
        of_team={limit.team_id: str(limit.pk) for limit in counted if limit.is_of_team},
        of_project={limit.project_id: str(limit.pk) for limit in counted if limit.project_id is not None},
        of_person={(limit.team_id, limit.person_id): str(limit.pk) for limit in counted if limit.person_id is not None},
    )


def label_of(limit: SpendingLimit) -> str:
    """The label in the phrase "the budget of …"."""
    if limit.project:
        return f"project {limit.project.name}"
    return limit.person.email if limit.person else f"team {limit.team.name}"
