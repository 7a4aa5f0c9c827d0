"""Requests of known people and keys that were denied (403), written into the audit log up to a bound.

Invariant: what is written is the route, not the address: ids of one team's things do not reach another team's log. A
key's denial stands in its own team's chain, a person's at a page in those of all their teams.
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
    """Middleware. Behind authentication."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        if response.status_code == DENIED or getattr(request, "was_denied", False):
            _note(request)
        return response

    return middleware


def mark(request: HttpRequest, refusal: Exception) -> None:
    """A page tells of a refusal in words on the next page, so its status says nothing."""
    if isinstance(refusal, Denied):
        request.was_denied = True  # type: ignore[attr-defined]


def _note(request: HttpRequest) -> None:
    caller, match = getattr(request, "known_caller", None), request.resolver_match
    told = {"method": request.method, "route": match.route if match else ""}
    now = database_now()
    if isinstance(caller, Caller):
        record_tried(
            caller.user, "request.denied", now=now, data=told, team_id=caller.team.pk, actor=caller.actor
        )  # fmt: skip
    elif isinstance(request.user, User):
        record_tried(request.user, "request.denied", now=now, data=told, actor=f"user:{request.user.pk}")
