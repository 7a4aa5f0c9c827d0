"""Teams, for operators: the list, creation, invitations of owners, and budgets.

Invariant: an invitation's link is shown once, in the response to the form that created it, and is not stored.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_POST

from backend.accounts.models import Invitation
from backend.accounts.operators.acting import Operator
from backend.accounts.operators.teams import TeamSummary, all_teams, invite_owner, make_team, the_team
from backend.accounts.people.invitations import link_of, mail
from backend.api.etags import etag_of
from backend.budgets.limits import limit_of, set_team_money, team_money
from backend.budgets.models import Unit
from backend.clock import database_now
from backend.errors import Invalid, Refusal
from backend.pages.budgets.typed import amount_typed
from backend.pages.operator.frame import (
    act_and_redirect,
    context_of,
    for_operators,
    optional_count_of,
    text_of,
    version_of,
)
from backend.pages.operator.undo_forms import undo_hours, undo_money
from backend.pages.undoing import Done
from backend.pools.budgets import budget_states
from backend.pools.models import Budget
from backend.pools.representations import MOST_GPU_SECONDS
from backend.pools.services import set_budget
from backend.usage.pricing.money import exact_text, shown
from backend.usage.pricing.prices import site_currency

SECONDS_AN_HOUR = 3_600


@require_http_methods(["GET", "HEAD", "POST"])
@for_operators
def teams(request: HttpRequest, operator: Operator) -> HttpResponse:
    """POST creates a team; the response shows its owner's link."""
    if request.method != "POST":
        return _show(request)
    name, owner = text_of(request, "name"), text_of(request, "owner").lower()
    return _shown_once(request, lambda: make_team(operator, name=name, owner=owner, now=database_now()))


@require_POST
@for_operators
def owner(request: HttpRequest, operator: Operator, team_id: str) -> HttpResponse:
    wanted = text_of(request, "owner").lower()
    return _shown_once(request, lambda: invite_owner(operator, team_id, owner=wanted, now=database_now()))


@require_POST
@for_operators
def budget(request: HttpRequest, operator: Operator, team_id: str) -> HttpResponse:
    """Per month, over all pools. Empty: no limit."""

    def act() -> Done:
        team = the_team(team_id)
        hours = optional_count_of(request, "hours", "GPU-hours")
        if hours is not None and hours * SECONDS_AN_HOUR > MOST_GPU_SECONDS:
            raise Invalid(f"At most {MOST_GPU_SECONDS // SECONDS_AN_HOUR:,} GPU-hours; got {hours:,}.")
        seconds = None if hours is None else hours * SECONDS_AN_HOUR
        before = Budget.objects.filter(team=team).first()
        budget = set_budget(team, seconds, if_match=version_of(request), actor=operator.name, now=database_now())
        undo = undo_hours(team, budget, before)
        if hours is None:
            return Done(f"Budget of {team.name} removed. Only its quota limits it.", undo)
        return Done(f"{team.name} has {hours:,} GPU-hours per month. Running jobs continue.", undo)

    return act_and_redirect(request, act, "operator_teams")


@require_POST
@for_operators
def money(request: HttpRequest, operator: Operator, team_id: str) -> HttpResponse:
    """Per month, over all pools, in the site's currency. Empty: no limit."""

    def act() -> Done:
        team = the_team(team_id)
        amount = amount_typed(text_of(request, "amount"), Unit.MONEY)
        before = limit_of(team)
        limit = set_team_money(team, amount, if_match=version_of(request), actor=operator.name, now=database_now())
        undo = undo_money(team, limit, before)
        if amount is None:
            return Done(f"Budget of {team.name} removed.", undo)
        return Done(f"{team.name} has {shown(amount)} {site_currency()} per month. Running jobs continue.", undo)

    return act_and_redirect(request, act, "operator_teams")


def _shown_once(request: HttpRequest, make: Callable[[], tuple[Invitation, str]]) -> HttpResponse:
    try:
        invitation, token = make()
    except Refusal as refusal:
        if refusal.status == 404:
            raise Http404(refusal.detail) from None
        return _show(request, wrong=" ".join(refusal.sentences), status=refusal.status)
    mailed = mail(invitation, token)
    shown = {"invitation": invitation, "link": "" if mailed else link_of(token), "mailed": mailed}
    return _show(request, made=shown)


def _show(
    request: HttpRequest, *, made: dict[str, Any] | None = None, wrong: str = "", status: int = 200
) -> HttpResponse:
    typed = {} if made else request.POST
    now = database_now()
    budgets = {"teams": _with_budgets(all_teams(), now), "currency": site_currency()}
    context = context_of(**budgets, made=made, wrong=wrong, typed=typed, now=now)
    return render(request, "pages/operator/teams.html", context, status=status)


def _with_budgets(seen: Sequence[TeamSummary], now: datetime) -> list[dict[str, Any]]:
    names = [each.team.pk for each in seen]
    states, moneys = budget_states(names, now=now), team_money(names, now=now)
    return [
        {
            "team": each.team,
            "num_people": each.num_people,
            "num_owners": each.num_owners,
            "hours": None if (limit := states[each.team.pk].limit) is None else limit // SECONDS_AN_HOUR,
            "spent": states[each.team.pk].spent / SECONDS_AN_HOUR,
            "version": etag_of(states[each.team.pk].version),
            "money": None if (amount := moneys[each.team.pk].amount) is None else exact_text(amount),
            "money_spent": shown(moneys[each.team.pk].spent),
            "money_version": etag_of(moneys[each.team.pk].version),
        }
        for each in seen
    ]
