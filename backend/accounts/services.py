"""Storing, revoking and recognising API keys. Who may make which key is judged in `key_making`.

Invariants:
- a key speaks for its owner, a person or a service account, with the role that the owner has in the team now;
- in a team that asks for it, who rules without a second factor rules nothing: owner and admin count as member;
- a revoked key takes along the keys and the open invitations that were made with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVar

from django.db import connection, models
from django.db.models import QuerySet

from backend.accounts import keys
from backend.accounts.models import ApiKey, Invitation, Role, Team, User
from backend.accounts.rights import effective_role
from backend.accounts.scopes import DEFAULT_SCOPES, SCOPES, scopes_of_role
from backend.prepared_queries import fetch_prepared

M = TypeVar("M", bound=models.Model)
_USE_WRITTEN_EVERY = timedelta(minutes=1)  # a busy key would otherwise write a row with every request


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request: a key of one team, with the role that its owner has there now."""

    key: ApiKey
    user: User
    team: Team
    role: Role

    @property
    def scopes(self) -> frozenset[str]:
        """The key's scopes, less those that its owner's role does not carry (any more)."""
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
    """The key and its text, which is shown this once. `text` takes in a key that was made elsewhere."""
    unknown = set(scopes) - set(SCOPES)
    if unknown:
        raise ValueError(f"unknown scopes {sorted(unknown)}; known are {', '.join(SCOPES)}")
    text = keys.new_key_text() if text is None else text
    if not keys.is_well_formed(text):
        raise ValueError("this is not the text of an API key: its checksum or its shape is wrong")
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


def revoke_keys(found: QuerySet[ApiKey], *, now: datetime) -> list[str]:
    """The ids of all that were revoked: those found and, whoever holds them, those that were made with them."""
    revoked: list[str] = []
    wanted = list(found.values_list("pk", flat=True))
    while wanted:
        ApiKey.objects.filter(pk__in=wanted, revoked_at__isnull=True).update(revoked_at=now)
        Invitation.objects.filter(made_with__in=wanted, accepted_at=None, revoked_at=None).update(revoked_at=now)
        revoked += wanted
        wanted = list(ApiKey.objects.filter(created_with__in=wanted).values_list("pk", flat=True))
    return revoked


def recognise_api_key(text: str, *, now: datetime) -> Caller | None:
    """Whom a key speaks for; nobody if it is malformed, unknown, revoked, expired, or its owner has left the team."""
    if not keys.is_well_formed(text):
        return None
    rows = fetch_prepared(_find(), [keys.prefix_of(text), now])
    if not rows:
        return None
    role, values = Role(rows[0][0]), iter(rows[0][1:])
    key, owner, team = _next_of(ApiKey, values), _next_of(User, values), _next_of(Team, values)
    if not keys.matches(text, key.secret_sha256):
        return None
    key.owner, key.team = owner, team
    _note_use(key, now=now)
    return Caller(key=key, user=owner, team=team, role=effective_role(owner, team, role))


@cache
def _find() -> str:
    """Asked by every request there is, so it is written once: putting it together took longer than the answer."""
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


def _next_of(model: type[M], values: Iterator[Any]) -> M:
    names = [field.attname for field in model._meta.concrete_fields]
    return model.from_db(connection.alias, names, [next(values) for _ in names])


def _note_use(key: ApiKey, *, now: datetime) -> None:
    if key.last_used_at is None or key.last_used_at < now - _USE_WRITTEN_EVERY:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
