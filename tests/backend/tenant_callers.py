"""Callers of the tenant matrix, and the types of its rows."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from backend.accounts.keys.scopes import SCOPES, scopes_of_role
from backend.accounts.models import Role, Team, User
from backend.accounts.services import create_api_key, revoke_api_key

NOBODY = ("anonymous", "revoked key", "expired key", "key of one who left")
OUTSIDER = "other team's owner"
INSIDERS = ("viewer", "member", "admin", "owner", "operator", "narrow key", "single key")
ACTORS = (*NOBODY, OUTSIDER, *INSIDERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    now: datetime
    ids: dict[str, str]
    """By the name of the parameter in a route's path."""
    people: dict[str, User]

    def path(self, template: str) -> str:
        return template.format(**self.ids)

    def key_of(self, actor: str, *, scope: str | None) -> str | None:
        """A key for this route: `narrow key` is the owner's with every scope except the route's, `single key` has the
        route's scope only (the operator's key, if an owner may not call the route)."""
        if actor == "anonymous":
            return None
        owner_may = scope is None or scope in scopes_of_role(Role.OWNER)
        stands_for = "owner" if actor != "single key" or owner_may else "operator"
        user = self.people.get(actor, self.people[stands_for])
        role = Role(user.memberships.get().role) if user.memberships.exists() else Role.OWNER
        team = user.memberships.get().team if user.memberships.exists() else Team.objects.get(pk=self.ids["team_id"])
        scopes = scopes_of_role(role, is_operator=user.is_staff)
        if actor == "narrow key":
            scopes = scopes - {scope} if scope is not None else scopes
        if actor == "single key":
            scopes = scopes & {scope}
        real_now = datetime.now(UTC)
        expires_at = real_now - timedelta(seconds=1) if actor == "expired key" else None
        key, text = create_api_key(
            team=team, created_by=user, name=actor, scopes=sorted(scopes & set(SCOPES)), expires_at=expires_at
        )
        if actor == "revoked key":
            revoke_api_key(key, now=real_now)
        return text

    def may(self, actor: str, scope: str | None) -> bool:
        if scope is None:
            return True
        if actor in ("narrow key", "single key"):
            return actor == "single key"
        user = self.people[actor]
        return scope in scopes_of_role(Role(user.memberships.get().role), is_operator=user.is_staff)


Body = Callable[[World], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    scope: str | None
    """That the route must require."""
    body: Body | None = None
    query: str = ""
    ok: frozenset[int]
    """The statuses of an authorized caller: success, or a conflict of state (409, 425, 422). Never 401, 403, 404."""
    names_ours: bool = False
    """Whether its body names a resource of the team."""
    is_shared: bool = False
    """Whether the resource in its path is shared with the other team."""
    only_rulers: bool = False
    """Whether it needs the admin or owner role in addition to the scope."""
    speaks_of_itself: bool = False
    """Whether any key may do it to itself, and needs a scope to do it to another."""


ANY_KEY: Final = None
"""The scope of a route that every valid key may call."""


def row(scope: str | None, body: Body | None = None, *also: int, query: str = "", **flags: bool) -> Row:
    return Row(scope=scope, body=body, query=query, ok=frozenset({200, 201, 202, 204, *also}), **flags)


RULERS: Final = frozenset({"admin", "owner"})
WORKERS: Final = RULERS | {"member", "operator"}
EVERYBODY: Final = WORKERS | {"viewer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    method: str = "GET"
    form: Body | None = None
    may: frozenset[str] = EVERYBODY
    """The roles of the team that may post; others are refused."""
    asks: bool = False
    """Whether a page that is posted to can also be read, which tests it once more."""
