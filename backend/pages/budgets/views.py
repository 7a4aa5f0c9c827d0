"""Budgets of projects and members: the spent part of each, and a form for the team's owners and admins. The team's own
budget is shown too; operators set it.

Invariant: a form carries the version that it shows, so the second of two concurrent changes is refused.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from backend.accounts.acting import Acting
from backend.accounts.selectors import members_of, projects_of
from backend.api.etags import etag_of
from backend.budgets.limits import LimitView, limit_of, limits_of, set_limit
from backend.budgets.models import SpendingLimit, Unit
from backend.clock import database_now
from backend.errors import Invalid
from backend.pages.budgets.typed import SECONDS_AN_HOUR, amount_typed, as_typed
from backend.pages.team.team_views import act_and_notify, acting_in, address_of
from backend.pages.undoing import Done, UndoForm
from backend.usage.pricing.money import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitShown:
    """In device-hours, or in money."""

    whose: str
    """The form's value: project:ID or person:ID; empty: the team's own, which only operators set."""
    label: str
    unit: str
    amount: str
    spent: str
    left: str
    spent_share: float
    """Per cent of the bar, like `committed_share`."""
    committed_share: float
    version: str

    @classmethod
    def of(cls, seen: LimitView, currency: str) -> "LimitShown":
        limit, scale = seen.limit, 1 if seen.limit.unit == Unit.MONEY else SECONDS_AN_HOUR
        spent = min(100.0, float(seen.percent))
        committed = float(100 * seen.committed / limit.amount) if limit.amount else 0.0
        return cls(
            whose=_whose(limit),
            label=seen.label,
            unit=currency if limit.unit == Unit.MONEY else "GPU-hours",
            amount=shown(limit.amount / scale),
            spent=shown(seen.spent / scale),
            left=shown(max(Decimal(0), seen.left) / scale),
            spent_share=spent,
            committed_share=min(100.0 - spent, committed),
            version=etag_of(limit.version),
        )


def budgets_shown(acting: Acting, currency: str, *, now: datetime) -> dict[str, Any]:
    """For the usage page."""
    limits = [LimitShown.of(seen, currency) for seen in limits_of(acting.team, now=now)]
    taken = {limit.whose for limit in limits}
    projects = [(f"project:{each.pk}", f"project {each.name}") for each in projects_of(acting.team)]
    people = [(f"person:{each.user.public_id}", each.user.email) for each in members_of(acting.team)]
    free = [each for each in (*projects, *people) if each[0] not in taken] if acting.rules else []
    return {"limits": limits, "without_limit": free}


@require_POST
@never_cache
@login_required
def set_one(request: HttpRequest) -> HttpResponse:
    """An empty amount removes the limit."""
    acting = acting_in(request)

    def act() -> Done:
        kind, _, name = request.POST.get("whose", "")[:80].partition(":")
        if kind not in ("project", "person"):
            raise Invalid("Choose a project or a member.")
        unit = request.POST.get("unit", "")
        amount = amount_typed(request.POST.get("amount", ""), unit)
        version = request.POST.get("version", "")[:80] or etag_of(0)
        project, person = (name if kind == each else "" for each in ("project", "person"))
        before = limit_of(acting.team, project=project, person=person)
        try:
            limit = set_limit(
                acting,
                project=project,
                person=person,
                unit=unit,
                amount=amount,
                if_match=version,
                now=database_now(),
            )
        except Invalid as refusal:
            raise Invalid(" ".join(refusal.sentences)) from None
        message = "Budget removed." if amount is None else "Budget saved. It applies from the next job start."
        fields = {"whose": f"{kind}:{name}", "version": etag_of(limit.version if limit else 0)}
        fields |= {"unit": before.unit if before else unit, "amount": as_typed(before)}
        is_as_before = (limit and limit.unit, as_typed(limit)) == (before and before.unit, as_typed(before))
        way = UndoForm(address=address_of("set_limit", acting.team), fields=fields)
        return Done(message, None if is_as_before else way)

    act_and_notify(request, act)
    return redirect(address_of("usage", acting.team))


def _whose(limit: SpendingLimit) -> str:
    if limit.person:
        return f"person:{limit.person.public_id}"
    return f"project:{limit.project_id}" if limit.project else ""
