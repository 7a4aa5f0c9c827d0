"""The team's audit log: who did what to which target, and whether the log is unchanged.

Invariants:
- the log is visible to those who can read it by API (scope `audit:read`: admins and owners), and read-only;
- the chain is verified only on request, and then as a whole: a displayed entry is not thereby verified.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.accounts.models import ApiKey, Team, User
from backend.audit.anchoring import verify_log_of
from backend.audit.anchors import BrokenAnchors
from backend.audit.models import AuditEntry
from backend.audit.selectors import entries_of
from backend.borders.types import read_count, read_day
from backend.clock import database_now
from backend.pages import curl
from backend.pages.team.team_views import acting_in, frame_of

ENTRIES_A_PAGE: Final = 50
MOST_CHECKED: Final = 20_000
"""Takes about a second; `manage.py verify_audit` checks longer logs."""
_LONGEST_FILTER: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    entry: AuditEntry
    actor: str
    """A name if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    actor: str
    action: str
    target: str
    since: str
    before: int | None

    @property
    def is_anything(self) -> bool:
        return bool(self.actor or self.action or self.target or self.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    is_good: bool
    message: str


@require_safe
@never_cache
@login_required
def audit(request: HttpRequest) -> HttpResponse:
    """With `check`, the whole chain is verified."""
    acting = acting_in(request)
    if "audit:read" not in acting.scopes:
        raise PermissionDenied("Only team admins and owners can view the audit log.")
    asked = _read_filter(request)
    entries, wrong = _find_entries(acting.team, asked)
    rows = list(entries[: ENTRIES_A_PAGE + 1])
    page = rows[:ENTRIES_A_PAGE]
    filters = {name: value for name in ("actor", "action", "target") if (value := getattr(asked, name))}
    context: dict[str, Any] = frame_of(acting) | {
        "entries": _name_actors(page),
        "older": page[-1].seq if len(rows) > ENTRIES_A_PAGE else None,
        "asked": asked,
        "wrong": wrong,
        "actions": list(entries_of(acting.team.pk).order_by("action").values_list("action", flat=True).distinct()),
        "check": _verify_chain(acting.team) if "check" in request.GET else None,
        "curl": curl.get("/audit-log", **filters),
        "now": database_now(),
    }
    return render(request, "pages/team/audit.html", context, status=422 if wrong else 200)


def _read_filter(request: HttpRequest) -> Asked:
    def text(name: str) -> str:
        return "".join(each for each in request.GET.get(name, "") if each.isprintable()).strip()[:_LONGEST_FILTER]

    return Asked(
        actor=text("actor"),
        action=text("action"),
        target=text("target"),
        since=text("since"),
        before=read_count(request.GET.get("before", "")),
    )


def _find_entries(team: Team, asked: Asked) -> tuple[QuerySet[AuditEntry], str]:
    entries, wrong = entries_of(team.pk), ""
    if asked.actor:
        entries = entries.filter(actor__in=_actors_called(team, asked.actor))
    if asked.action:
        entries = entries.filter(action=asked.action)
    if asked.target:
        entries = entries.filter(target=asked.target)
    if asked.since:
        try:
            day = read_day(asked.since)
            entries = entries.filter(at__gte=datetime.combine(day, time(), UTC))
        except ValueError:
            wrong = "Enter a date such as 2026-01-31."
    if asked.before is not None:
        entries = entries.filter(seq__lt=asked.before)
    return entries, wrong


def _actors_called(team: Team, text: str) -> list[str]:
    """Actors as recorded in the log, users by e-mail, or keys by name."""
    people = User.objects.filter(email__iexact=text).values_list("pk", flat=True)
    keys = ApiKey.objects.filter(team=team, name=text).values_list("pk", flat=True)
    return [text, *(f"user:{pk}" for pk in people), *(f"key:{pk}" for pk in keys)]


def _name_actors(entries: Sequence[AuditEntry]) -> list[Shown]:
    actors = {entry.actor for entry in entries}
    people = User.objects.filter(pk__in=_numbers(_ids(actors, "user:"))).values_list("pk", "email")
    keys = ApiKey.objects.filter(pk__in=_ids(actors, "key:")).values_list("pk", "name")
    names = {f"user:{pk}": email for pk, email in people} | {f"key:{pk}": f"key “{name}”" for pk, name in keys}
    return [Shown(entry=entry, actor=names.get(entry.actor, entry.actor)) for entry in entries]


def _ids(actors: Iterable[str], kind: str) -> list[str]:
    return [actor.removeprefix(kind) for actor in actors if actor.startswith(kind)]


def _numbers(ids: Iterable[str]) -> list[int]:
    return [number for each in ids if (number := read_count(each)) is not None]


def _verify_chain(team: Team) -> Check:
    num = entries_of(team.pk).count()
    if num > MOST_CHECKED:
        return Check(
            is_good=False,
            message=f"This log has {num:,} entries, too many to verify on this page. Ask an operator to run "
            "`manage.py verify_audit`.",
        )
    try:
        finding, num_anchored = verify_log_of(team.pk)
    except BrokenAnchors as error:
        return Check(is_good=False, message=f"The anchor file was modified: {error}.")
    if finding is not None:
        return Check(is_good=False, message=f"Entry {finding.seq} was modified: {finding.message}.")
    summary = f"All {num:,} entries are unmodified, and none is missing between them."
    if num_anchored is None:
        return Check(is_good=True, message=f"{summary} The signed anchors are stored elsewhere and were not checked.")
    return Check(
        is_good=True, message=f"{summary} Signed anchors outside the database confirm {num_anchored:,} of them."
    )
