"""Limits of projects and members, set by owners and admins, and of a team's money, set by operators; visible to all.

Invariant: a limit changes under its lock and only from the version that the caller saw; every change is in the team's
log, and triggers a round of the scheduler.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, TypedDict

from django.db import transaction
from django.db.models import Q

from backend.accounts.acting import Acting
from backend.accounts.models import Project, Team, User
from backend.accounts.people.memberships import membership_of
from backend.accounts.people.teams import the_project
from backend.api.etags import etag_of, refuse_if_changed
from backend.audit.services import record_action
from backend.budgets.models import SpendingLimit, Unit
from backend.budgets.spending import spending_of, spent_under
from backend.budgets.spending_limits import label_of
from backend.errors import FieldError, Invalid
from backend.pools.changes import pool_changed
from backend.pools.models import TeamQuota
from backend.usage.pricing.prices import site_currency

MOST: Final = Decimal(10) ** 15
PLACES: Final = 6
CHANGED: Final = "limit.changed"
_OF_TEAM: Final = Q(project__isnull=True, person__isnull=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    limit: SpendingLimit
    label: str
    spent: Decimal
    committed: Decimal

    @property
    def name(self) -> str:
        """Name of the project or team, or the user's address."""
        limit = self.limit
        return limit.team.name if limit.is_of_team else limit.project.name if limit.project else self.label

    @property
    def left(self) -> Decimal:
        return self.limit.amount - self.spent - self.committed

    @property
    def percent(self) -> Decimal:
        """Percentage spent. A limit of 0 counts as fully spent."""
        return 100 * self.spent / self.limit.amount if self.limit.amount else Decimal(100)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyView:
    """A team's money, in the site's currency. Without a limit, `left` is None."""

    amount: Decimal | None
    spent: Decimal
    committed: Decimal
    version: int

    @property
    def left(self) -> Decimal | None:
        return None if self.amount is None else self.amount - self.spent - self.committed


def set_limit(
    acting: Acting,
    *,
    project: str = "",
    person: str = "",
    unit: str,
    amount: Decimal | None,
    if_match: str | None,
    now: datetime,
) -> SpendingLimit | None:
    """Sets the project's, or else the user's, limit; None removes it. Raises `NotFound`, `Invalid`."""
    acting.refuse_unless_ruling()
    _refuse_nonsense(unit, amount)
    with transaction.atomic():
        whose = _Whose(
            project=the_project(acting.team, project) if project else None,
            person=None if project else membership_of(acting.team, person).user,
        )
        limit, data = _change(acting.team, whose, unit, amount, if_match=if_match, now=now)
        acting.record(CHANGED, project or person, now=now, data=data)
    return limit


def set_team_money(
    team: Team, amount: Decimal | None, *, if_match: str | None, actor: str, now: datetime
) -> SpendingLimit | None:
    """Sets an operator's limit in the site's currency; None removes it. Raises `Invalid`."""
    _refuse_nonsense(Unit.MONEY, amount)
    with transaction.atomic():
        limit, data = _change(team, _Whose(project=None, person=None), Unit.MONEY, amount, if_match=if_match, now=now)
        record_action(team_id=team.pk, actor=actor, action=CHANGED, target=team.pk, now=now, data=data)
    return limit


def team_money(teams: Collection[str], *, now: datetime) -> dict[str, MoneyView]:
    """For each of the teams."""
    limits = {limit.team_id: limit for limit in SpendingLimit.objects.filter(_OF_TEAM, team_id__in=teams)}
    spending = spending_of(teams, now=now)
    seen = {}
    for team in teams:
        limit = limits.get(team)
        limit_or_none = limit or SpendingLimit(team_id=team, unit=Unit.MONEY, version=0)
        spent, committed = spent_under(limit_or_none, spending)
        amount = limit.amount if limit else None
        seen[team] = MoneyView(amount=amount, spent=spent, committed=committed, version=limit_or_none.version)
    return seen


def limit_of(team: Team, *, project: str = "", person: str = "") -> SpendingLimit | None:
    """The limit of the project, or else of the user, or else of the team."""
    rows = SpendingLimit.objects.filter(team=team)
    if project:
        return rows.filter(project_id=project).first()
    return rows.filter(person__public_id=person).first() if person else rows.filter(_OF_TEAM).first()


def limits_of(team: Team, *, now: datetime) -> Sequence[LimitView]:
    """The team's own first, then projects', then users', by name."""
    rows = list(SpendingLimit.objects.filter(team=team).select_related("team", "project", "person"))
    spending = spending_of([team.pk], now=now) if rows else {}
    seen = []
    for limit in rows:
        spent, committed = spent_under(limit, spending)
        seen.append(LimitView(limit=limit, label=label_of(limit), spent=spent, committed=committed))
    return sorted(seen, key=lambda one: (one.limit.person_id is not None, not one.limit.is_of_team, one.label))


class _Whose(TypedDict):
    project: Project | None
    person: User | None


def _change(
    team: Team, whose: _Whose, unit: str, amount: Decimal | None, *, if_match: str | None, now: datetime
) -> tuple[SpendingLimit | None, dict[str, str | None]]:
    """Returns the new limit and the data of its log entry. Runs in the caller's transaction."""
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)  # the limit may have no row to lock
    limit = SpendingLimit.objects.select_for_update(no_key=True).filter(team=team, **whose).first()
    refuse_if_changed(if_match, etag_of(limit.version if limit else 0))
    before = f"{limit.amount:f} {limit.unit}" if limit else None
    if amount is None:
        SpendingLimit.objects.filter(team=team, **whose).delete()
        limit = None
    else:
        limit = limit or SpendingLimit(team=team, version=0, **whose)
        limit.unit, limit.amount, limit.version = unit, amount, limit.version + 1
        limit.save()
    for pool_id in TeamQuota.objects.filter(team=team).order_by("pool_id").values_list("pool_id", flat=True):
        pool_changed()(pool_id, now)
    return limit, {"before": before, "after": f"{limit.amount:f} {limit.unit}" if limit else None}


def _refuse_nonsense(unit: str, amount: Decimal | None) -> None:
    errors = []
    if unit not in Unit.values:
        errors.append(
            FieldError(pointer="/unit", code="unit", message=f"Must be one of {', '.join(Unit.values)}; got {unit}.")
        )
    if unit == Unit.MONEY and amount is not None and not site_currency():
        message = "This site has no prices. Set the limit in device_seconds."
        errors.append(FieldError(pointer="/unit", code="no_prices", message=message))
    if amount is not None and not (amount.is_finite() and 0 <= amount < MOST and amount == round(amount, PLACES)):
        message = f"Must be 0 or more, below {MOST:,f}, with at most {PLACES} decimals; got {amount}."
        errors.append(FieldError(pointer="/amount", code="amount", message=message))
    if errors:
        raise Invalid(errors=errors)
