"""Storing, revoking and recognising API keys. `key_making` decides who may create which key.

Invariants:
- a key acts for its owner, a user or a service account, with the role that the owner has in the team now;
- in a team that requires a second factor, an owner or admin without one counts as a member;
- revoking a key also revokes the keys and the open invitations that were made with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVar

from django.db import connection, models
from django.db.models import QuerySet

from backend.accounts.keys import tokens as keys
from backend.accounts.keys.scopes import DEFAULT_SCOPES, SCOPES, scopes_of_role
from backend.accounts.models import ApiKey, Invitation, Role, Team, User
from backend.accounts.rights import effective_role
from backend.prepared_queries import fetch_prepared

M = TypeVar("M", bound=models.Model)
_USE_WRITTEN_EVERY = timedelta(minutes=1)  # else a busy key would write a row on every request


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request: a key of one team, with the role that its owner has there now."""

    key: ApiKey
    user: User
    team: Team
    role: Role

    @property
    def scopes(self) -> frozenset[str]:
        """The key's scopes that its owner's present role still includes."""
        return frozenset(self.key.scopes) & scopes_of_role(self.role, is_operator=self.user.is_staff)

    @property
    def actor(self) -> str:
        return f"key:{self.key.pk}"


def create_api_key(
    *,
    team: Team,
    created_by: User,
    name: str,
    scopes: Sequence[str] = DEFAULT_SCOPES,
    expires_at: datetime | None = None,
    text: str | None = None,
    **columns: Any,
) -> tuple[ApiKey, str]:
    """The key and its text, shown only once. `text` imports a key that was generated elsewhere."""
    unknown = set(scopes) - set(SCOPES)
    if unknown:
        raise ValueError(f"unknown scopes {sorted(unknown)}; known are {', '.join(SCOPES)}")
    text = keys.new_key_text() if text is None else text
    if not keys.is_well_formed(text):
        raise ValueError("not an API key: its format or its checksum is wrong")
    key = ApiKey.objects.create(
        team=team,
        created_by=created_by,
        name=name,
        prefix=keys.prefix_of(text),
        secret_sha256=keys.digest_of(text),
        scopes=sorted(set(scopes)),
        expires_at=expires_at,
        **{"owner": created_by} | columns,
    )
    return key, text


def revoke_api_key(key: ApiKey, *, now: datetime) -> None:
    revoke_keys(ApiKey.objects.filter(pk=key.pk), now=now)
    key.refresh_from_db(fields=["revoked_at"])


def revoke_keys(roots: QuerySet[ApiKey], *, now: datetime) -> list[str]:
    """The ids of all revoked keys: those given, and all keys that were created with them, of any owner."""
    revoked: list[str] = []
    frontier = list(roots.values_list("pk", flat=True))
    while frontier:
        ApiKey.objects.filter(pk__in=frontier, revoked_at__isnull=True).update(revoked_at=now)
        Invitation.objects.filter(made_with__in=frontier, accepted_at=None, revoked_at=None).update(revoked_at=now)
        revoked += frontier
        frontier = list(ApiKey.objects.filter(created_with__in=frontier).values_list("pk", flat=True))
    return revoked


def recognise_api_key(text: str, *, now: datetime) -> Caller | None:
    """The key's caller; None if it is malformed, unknown, revoked or expired, or its owner has left the team."""
    if not keys.is_well_formed(text):
        return None
    rows = fetch_prepared(_build_query(), [keys.prefix_of(text), now])
    if not rows:
        return None
    role, values = Role(rows[0][0]), iter(rows[0][1:])
    key, owner, team = _build_next(ApiKey, values), _build_next(User, values), _build_next(Team, values)
    if not keys.matches(text, key.secret_sha256):
        return None
    key.owner, key.team = owner, team
    _note_use(key, now=now)
    return Caller(key=key, user=owner, team=team, role=effective_role(owner, team, role))


@cache
def _build_query() -> str:
    """Every request runs this query, so its text is cached: building it took longer than running it."""
    columns = [
        f'{alias}."{field.column}"'
        for alias, model in (("key", ApiKey), ("owner", User), ("team", Team))
        for field in model._meta.concrete_fields
    ]
    return f"""
        SELECT membership.role, {", ".join(columns)}
        FROM accounts_apikey key
        JOIN accounts_user owner ON owner.id = key.owner_id AND owner.is_active
        JOIN accounts_team team ON team.id = key.team_id
        JOIN accounts_membership membership ON membership.user_id = key.owner_id AND membership.team_id = key.team_id
        WHERE key.prefix = %s AND key.revoked_at IS NULL AND (key.expires_at IS NULL OR key.expires_at > %s)
    """  # noqa: S608  # names of columns


def _build_next(model: type[M], values: Iterator[Any]) -> M:
    names = [field.attname for field in model._meta.concrete_fields]
    return model.from_db(connection.alias, names, [next(values) for _ in names])


def _note_use(key: ApiKey, *, now: datetime) -> None:
    if key.last_used_at is None or key.last_used_at < now - _USE_WRITTEN_EVERY:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
