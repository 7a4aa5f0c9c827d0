"""Spending limits of a pool's jobs beyond their team's GPU-seconds: budgets of money, projects and people.

Pools know no prices and no budgets of projects and people; `backend.budgets` fills this port.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from backend.pools.decision.views import SpendingLimitView
from backend.pools.models import ResourcePool
from backend.ports import Port


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingLimits:
    left: Mapping[str, SpendingLimitView] = field(default_factory=dict)
    of_team: Mapping[str, str] = field(default_factory=dict)
    of_project: Mapping[str, str] = field(default_factory=dict)
    of_person: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """By team and user: a user's budget is per team."""

    def drawn_on(self, team: str, project: str, person: int) -> tuple[str, ...]:
        names = (self.of_team.get(team), self.of_project.get(project), self.of_person.get((team, person)))
        return tuple(name for name in names if name is not None)


SpendingLimitsOf = Callable[[ResourcePool, Collection[str], datetime, bool], SpendingLimits]
"""For the teams; with True, locked until the end of the transaction, which serializes pools."""
spending_limits_of: Port[SpendingLimitsOf] = Port("budgets of money, projects and people")
