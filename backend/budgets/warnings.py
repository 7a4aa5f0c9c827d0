"""Warnings at 50, 80 and 100 per cent of a budget, once each a month.

Invariants:
- a row is written before the warning is sent, and is unique in the database, so concurrent checks send one warning;
- a budget that passes several levels at once gets the warning of the highest only;
- the entry in the team's log and the webhooks are in the row's transaction; mail is sent after it, and may fail.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final

from django.db import transaction

from backend.accounts.letters import send_letter
from backend.accounts.models import Membership, Team
from backend.accounts.rights import RULES
from backend.audit.services import record_action
from backend.budgets.limits import PLACES, limits_of
from backend.budgets.models import BudgetWarning, SpendingLimit, Unit
from backend.pools.budgets import budget_states, month_of
from backend.pools.models import Budget
from backend.usage.pricing.money import exact_text, shown
from backend.usage.pricing.prices import site_currency
from backend.webhooks.announcing import announce

log = logging.getLogger(__name__)
SECONDS_AN_HOUR: Final = 3_600
LEVELS: Final = (50, 80, 100)
EVENT: Final = "budget.warned"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    team: Team
    limit: SpendingLimit | None
    label: str
    amount: Decimal
    spent: Decimal
    unit: str

    @property
    def summary(self) -> str:
        """Spent and amount in readable units: a team may have a budget in GPU-hours and one in money."""
        scale, unit = (1, site_currency()) if self.unit == Unit.MONEY else (SECONDS_AN_HOUR, "GPU-hours")
        return f"{shown(self.spent / scale)} of {shown(self.amount / scale)} {unit}"

    @property
    def level(self) -> int:
        """The highest level reached, 0 if none. A budget of 0 counts as used up."""
        return max((level for level in LEVELS if self.spent * 100 >= self.amount * level), default=0)


def warn(*, now: datetime) -> int:
    """Sends due warnings; returns their number."""
    month = month_of(now).date()
    return sum(_warn_of(budget, month, now=now) for budget in _list_budgets(now))


def _list_budgets(now: datetime) -> Iterator[_Budget]:
    for row in Budget.objects.select_related("team").order_by("team_id"):
        state = budget_states([row.team_id], now=now)[row.team_id]
        yield _Budget(
            team=row.team,
            limit=None,
            label=f"team {row.team.name}",
            amount=Decimal(row.gpu_seconds),
            spent=round(Decimal(state.spent), PLACES),
            unit=Unit.DEVICE_SECONDS,
        )
    for team in Team.objects.filter(pk__in=SpendingLimit.objects.values("team")).order_by("pk"):
        for seen in limits_of(team, now=now):
            yield _Budget(
                team=team,
                limit=seen.limit,
                label=seen.label,
                amount=seen.limit.amount,
                spent=seen.spent,
                unit=seen.limit.unit,
            )


def _warn_of(budget: _Budget, month: date, *, now: datetime) -> int:
    if not budget.level:
        return 0
    with transaction.atomic():
        rows = [
            BudgetWarning(team=budget.team, limit=budget.limit, month=month, percent=level, at=now)
            for level in LEVELS
            if level <= budget.level
        ]
        before = BudgetWarning.objects.filter(team=budget.team, limit=budget.limit, month=month).count()
        if before >= len(rows):
            return 0
        Team.objects.select_for_update(no_key=True).get(pk=budget.team.pk)  # serializes concurrent checks
        known = BudgetWarning.objects.filter(team=budget.team, limit=budget.limit, month=month)
        sent = set(known.values_list("percent", flat=True))
        new = [row for row in rows if row.percent not in sent]
        if not new:
            return 0
        BudgetWarning.objects.bulk_create(new)
        data = _describe(budget, month)
        announce(budget.team, EVENT, data=data, message_id=f"bud_{new[-1].pk}", now=now)
        record_action(team_id=budget.team.pk, actor="budgets", action=EVENT, target=budget.label, now=now, data=data)
        transaction.on_commit(lambda: _send_mails(budget))
    log.info("budget warned team=%s of=%s percent=%d", budget.team.pk, budget.label, budget.level)
    return 1


def _describe(budget: _Budget, month: date) -> dict[str, object]:
    limit = budget.limit
    return {
        "team_id": budget.team.pk,
        "project_id": limit.project_id if limit else None,
        "user_id": limit.person.public_id if limit and limit.person else None,
        "percent": budget.level,
        "month": f"{month:%Y-%m}",
        "unit": budget.unit,
        "currency": site_currency() if budget.unit == Unit.MONEY else None,
        "amount": exact_text(budget.amount),
        "spent": exact_text(budget.spent),
    }


def _send_mails(budget: _Budget) -> None:
    """To the team's owners and admins, and to the user whose budget it is."""
    rulers = Membership.objects.filter(team=budget.team, role__in=RULES, user__is_service=False, user__is_active=True)
    people = set(rulers.values_list("user__email", flat=True))
    if budget.limit and budget.limit.person:
        people.add(budget.limit.person.email)
    rest = (
        "New jobs wait until next month or a larger budget. Running jobs continue."
        if budget.level == LEVELS[-1]
        else "No job waits yet. A job starts only if its maximum runtime fits what is left."
    )
    text = f"{budget.level}% of this month's budget of {budget.label} is spent: {budget.summary}.\n\n{rest}\n"
    for address in sorted(people):
        send_letter(address, f"{budget.level}% of the budget of {budget.label} is spent", text)
