"""Denied requests (403) of known users and keys, written to the audit log up to a limit.

Invariant: an entry has the route, not the URL, so ids of one team's resources do not reach another team's log. A key's
denial is written to its own team's chain, a user's on a page to the chains of all their teams.
"""

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from backend.accounts.models import User
from backend.accounts.services import Caller
from backend.accounts.signing_in.chains import record_tried
from backend.clock import database_now
from backend.errors import Denied

DENIED = 403


def note_denials(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Middleware. After authentication."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        if response.status_code == DENIED or getattr(request, "was_denied", False):
            _note(request)
        return response

    return middleware


def mark(request: HttpRequest, refusal: Exception) -> None:
    """Marks a request that a page refused: the page shows the refusal on the next page, so its status is no 403."""
    if isinstance(refusal, Denied):
        request.was_denied = True  # type: ignore[attr-defined]


def _note(request: HttpRequest) -> None:
    caller, match = getattr(request, "known_caller", None), request.resolver_match
    data = {"method": request.method, "route": match.route if match else ""}
    now = database_now()
    if isinstance(caller, Caller):
        record_tried(
            caller.user, "request.denied", now=now, data=data, team_id=caller.team.pk, actor=caller.actor
        )  # fmt: skip
    elif isinstance(request.user, User):
        record_tried(request.user, "request.denied", now=now, data=data, actor=f"user:{request.user.pk}")
