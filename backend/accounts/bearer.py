"""The caller of the REST API, known by an API key in the Authorization header and nothing else (no cookie).

Invariants:
- an invalid key is 401 and says nothing about why, and slows the address that it comes from; a valid key without the
  scope is 403;
- everything is looked up within the caller's team, so another team's things are 404 like what does not exist;
- a key that is limited to a project is held to it here, before any route runs.
"""

from datetime import UTC, datetime

from django.http import HttpRequest
from ninja.security import HttpBearer

from backend.accounts.project_limits import refuse_beyond_project
from backend.accounts.scopes import SCOPES
from backend.accounts.services import Caller, recognise_api_key
from backend.api.rate_limit import UNKNOWN_KEYS, TeamAndKey, take
from backend.api.request_context import stranger
from backend.errors import Denied


class ApiKeyAuth(HttpBearer):
    """API keys look like lam_live_…; send one as a bearer token."""

    def __init__(self, scope: str | None = None) -> None:
        assert scope is None or scope in SCOPES, scope
        self.scope = scope
        super().__init__()

    def authenticate(self, request: HttpRequest, token: str) -> Caller | None:
        caller = recognise_api_key(token, now=datetime.now(UTC))
        request.known_caller = caller  # type: ignore[attr-defined]  # ninja names one only if nothing is refused
        if caller is None:
            take(UNKNOWN_KEYS, of=stranger())
        if caller is not None and self.scope is not None and self.scope not in caller.scopes:
            raise Denied(f"This needs the scope {self.scope}, which this key or its owner's role does not have.")
        if caller is not None:
            refuse_beyond_project(caller.key, request)
        return caller


ANY_KEY = ApiKeyAuth()
MAY_READ = ApiKeyAuth("jobs:read")
MAY_WRITE = ApiKeyAuth("jobs:write")


def team_and_key(request: HttpRequest) -> TeamAndKey:
    """Whose limits a request is counted by."""
    caller = caller_of(request)
    return TeamAndKey(team=caller.team.pk, key=caller.key.pk)


def caller_of(request: HttpRequest) -> Caller:
    caller = getattr(request, "auth", None)
    assert isinstance(caller, Caller), "a route without ApiKeyAuth has no caller"
    return caller
