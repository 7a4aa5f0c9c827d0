"""Undo of an operator's change: the same form with the old values, under the version that the change left."""

from django.urls import reverse

from backend.accounts.models import Team
from backend.api.etags import etag_of
from backend.budgets.models import SpendingLimit
from backend.jobs.models import Job
from backend.pages.budgets.typed import SECONDS_AN_HOUR, as_typed
from backend.pages.undoing import UndoForm
from backend.pools.models import Budget, ResourcePool, TeamQuota

_TERMS = ("nominal", "borrow_limit", "lend_limit", "weight")


def undo_quota(now: TeamQuota, before: TeamQuota) -> UndoForm | None:
    if all(getattr(now, name) == getattr(before, name) for name in _TERMS):
        return None
    limits = {name: getattr(before, name) for name in ("borrow_limit", "lend_limit")}
    fields = {name: "" if limit is None else str(limit) for name, limit in limits.items()}
    fields |= {"team": before.team_id, "nominal": str(before.nominal), "weight": repr(before.weight)}
    address = reverse("operator_quota", args=[now.pool_id])
    return UndoForm(address=address, fields=fields | {"version": etag_of(now.pool.version)})


def undo_priority(pool: ResourcePool, now: Job, before: int) -> UndoForm | None:
    if now.priority == before:
        return None
    fields = {"priority": str(before), "version": etag_of(now.version)}
    return UndoForm(address=reverse("operator_priority", args=[pool.pk, now.pk]), fields=fields)


def undo_hours(team: Team, now: Budget | None, before: Budget | None) -> UndoForm | None:
    """None if REST set seconds that are no whole hours: the form takes whole hours."""
    seconds, left = (None if each is None else each.gpu_seconds for each in (before, now))
    if seconds == left or (seconds or 0) % SECONDS_AN_HOUR:
        return None
    hours = "" if seconds is None else str(seconds // SECONDS_AN_HOUR)
    fields = {"hours": hours, "version": etag_of(now.version if now else 0)}
    return UndoForm(address=reverse("operator_budget", args=[team.pk]), fields=fields)


def undo_money(team: Team, now: SpendingLimit | None, before: SpendingLimit | None) -> UndoForm | None:
    if as_typed(now) == as_typed(before):
        return None
    fields = {"amount": as_typed(before), "version": etag_of(now.version if now else 0)}
    return UndoForm(address=reverse("operator_money", args=[team.pk]), fields=fields)


def undo_host(pool: ResourcePool, host: str) -> UndoForm:
    return UndoForm(address=reverse("operator_change_host", args=[pool.pk]), fields={"act": "give_back", "host": host})
