"""Authentication of the REST API: an API key in the Authorization header, never a cookie.

Invariants:
- an invalid key is 401 without a reason, and counts against its address' rate limit; a valid key without the scope
  is 403;
- every query is limited to the caller's team, so another team's resource is 404 like a missing one;
- a key limited to a project is checked here, before any route runs.
"""

from datetime import UTC, datetime

from django.http import HttpRequest
from ninja.security import HttpBearer

from backend.accounts.keys.project_limits import refuse_beyond_project
from backend.accounts.keys.scopes import SCOPES
from backend.accounts.services import Caller, recognise_api_key
from backend.api.limits.rate_limit import UNKNOWN_KEYS, TeamAndKey, take
from backend.api.request_context import stranger
from backend.errors import Denied


class ApiKeyAuth(HttpBearer):
    """API keys look like lam_live_…. Send the key as a bearer token."""

    def __init__(self, scope: str | None = None) -> None:
        assert scope is None or scope in SCOPES, scope
        self.scope = scope
        super().__init__()

    def authenticate(self, request: HttpRequest, token: str) -> Caller | None:
        caller = recognise_api_key(token, now=datetime.now(UTC))
        request.known_caller = caller  # type: ignore[attr-defined]  # ninja sets `auth` only if nothing is refused
        if caller is None:
            take(UNKNOWN_KEYS, of=stranger())
        if caller is not None and self.scope is not None and self.scope not in caller.scopes:
            raise Denied(f"The key or its owner's role lacks the scope {self.scope}. Use a key with this scope.")
        if caller is not None:
            refuse_beyond_project(caller.key, request)
        return caller


ANY_KEY = ApiKeyAuth()
MAY_READ = ApiKeyAuth("jobs:read")
MAY_WRITE = ApiKeyAuth("jobs:write")


def team_and_key(request: HttpRequest) -> TeamAndKey:
    """The team and key whose rate limits a request counts against."""
    caller = caller_of(request)
    return TeamAndKey(team=caller.team.pk, key=caller.key.pk)


def caller_of(request: HttpRequest) -> Caller:
    caller = getattr(request, "auth", None)
    assert isinstance(caller, Caller), "a route without ApiKeyAuth has no caller"
    return caller
