"""Maintenance announcements with dates, shown to all users; times are in UTC."""

from datetime import UTC, datetime

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from backend.accounts.operators.acting import Operator
from backend.api.etags import etag_of
from backend.borders.types import read_moment
from backend.clock import database_now
from backend.errors import Invalid, NotFound
from backend.pages.announcements import latest
from backend.pages.operator.frame import act_and_redirect, context_of, for_operators, version_of
from backend.pools.maintenance import (
    MaintenanceTerms,
    announce,
    announced,
    change_maintenance,
    end_maintenance,
    the_notice,
)


@require_safe
@for_operators
def notices(request: HttpRequest, operator: Operator) -> HttpResponse:
    now = database_now()
    rows = [{"notice": each, "version": etag_of(each.version)} for each in announced(now)]
    return render(request, "pages/operator/maintenance.html", context_of(rows=rows, now=now))


@require_POST
@for_operators
def new(request: HttpRequest, operator: Operator) -> HttpResponse:
    def act() -> str:
        notice = announce(operator, _terms(request), now=database_now())
        latest.forget()
        return f"Maintenance announced to all users until {notice.ends_at:%Y-%m-%d %H:%M} UTC."

    return act_and_redirect(request, act, "operator_maintenance")


@require_POST
@for_operators
def change(request: HttpRequest, operator: Operator, notice_id: str) -> HttpResponse:
    """The pressed button names the action: change or end."""
    now = database_now()
    try:
        the_notice(notice_id, now)
    except NotFound as refusal:
        raise Http404(refusal.detail) from None

    def act() -> str:
        latest.forget()
        if request.POST.get("act") == "end":
            end_maintenance(operator, notice_id, if_match=version_of(request), now=now)
            return "Maintenance ended. Queued jobs may start."
        changed = change_maintenance(operator, notice_id, _terms(request), if_match=version_of(request), now=now)
        return f"Announcement saved. It is shown until {changed.ends_at:%Y-%m-%d %H:%M} UTC."

    return act_and_redirect(request, act, "operator_maintenance")


def _terms(request: HttpRequest) -> MaintenanceTerms:
    begins, ends = _moment(request, "begins_at", "Begins"), _moment(request, "ends_at", "Ends")
    if begins is None or ends is None:
        raise Invalid("Begins and Ends: enter a date and time in UTC, such as 2026-02-01T14:00.")
    return MaintenanceTerms(
        text=request.POST.get("text", "").strip(),
        begins_at=begins,
        ends_at=ends,
        stops_from=_moment(request, "stops_from", "No jobs start from"),
    )


def _moment(request: HttpRequest, name: str, label: str) -> datetime | None:
    """In the browser's format, in UTC; None: empty."""
    typed = request.POST.get(name, "").strip()
    if not typed:
        return None
    try:
        moment = read_moment(typed)
    except ValueError:
        raise Invalid(f"{label}: enter a date and time in UTC, such as 2026-02-01T14:00.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
