"""What the user's teams hold of each pool, their remaining monthly budgets, and their jobs that start next.

Invariant: places in line come from the scheduler's decision, which is slow for a long queue. Above the length that the
queue page explains by default, only the number of jobs is shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from backend.accounts.models import Team
from backend.jobs.models import Job, JobState
from backend.jobs.queue.team_view import InLine, queue_view_of
from backend.pages.queue_views import EXPLAINED_UNASKED, BudgetShown
from backend.pools.budgets import budget_states
from backend.pools.models import ResourcePool
from backend.pools.selectors import quotas_of, use_by_team

NUM_NEXT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHeld:
    team: Team
    pool: ResourcePool
    held: int
    nominal: int

    @property
    def own_share(self) -> float:
        """Per cent of the bar, like `borrowed_share`. The bar is as long as the larger of both numbers."""
        return 100 * min(self.held, self.nominal) / max(1, self.held, self.nominal)

    @property
    def borrowed(self) -> int:
        return max(0, self.held - self.nominal)

    @property
    def borrowed_share(self) -> float:
        return 100 * self.borrowed / max(1, self.held, self.nominal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A team's jobs in the queue of a pool."""

    team: Team
    pool: ResourcePool
    num: int
    first: Sequence[InLine]
    """Empty: the queue is too long to decide for a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthLeft:
    team: Team
    budget: BudgetShown


def pools_held(teams: Sequence[Team]) -> list[PoolHeld]:
    found: list[PoolHeld] = []
    use: dict[str, dict[str, int]] = {}
    for team in teams:
        for quota in quotas_of(team):
            if quota.pool_id not in use:
                use[quota.pool_id] = dict(use_by_team(quota.pool))
            held = use[quota.pool_id].get(team.pk, 0)
            if quota.nominal or held or quota.borrow_limit != 0:
                found.append(PoolHeld(team=team, pool=quota.pool, held=held, nominal=quota.nominal))
    return found


def months_left(teams: Sequence[Team], *, now: datetime) -> list[MonthLeft]:
    """For teams with a limit."""
    states = budget_states([team.pk for team in teams], now=now)
    return [
        MonthLeft(team=team, budget=BudgetShown.of(states[team.pk]))
        for team in teams
        if states[team.pk].limit is not None
    ]


def lines_of(teams: Sequence[Team], *, now: datetime) -> list[Line]:
    return list(_lines(teams, now))


def _lines(teams: Sequence[Team], now: datetime) -> Iterator[Line]:
    queued = Job.objects.filter(state=JobState.QUEUED)
    for team in teams:
        ids = queued.filter(team=team).order_by().values_list("pool_id", flat=True).distinct()
        for pool in ResourcePool.objects.filter(pk__in=list(ids)).order_by("name"):
            num = queued.filter(team=team, pool=pool).count()
            is_short = queued.filter(pool=pool).count() <= EXPLAINED_UNASKED
            seen = queue_view_of(team, pool, only_mine=True, limit=NUM_NEXT, now=now) if is_short else None
            yield Line(team=team, pool=pool, num=num, first=seen.waiting if seen else ())
