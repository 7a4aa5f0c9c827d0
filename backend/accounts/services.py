"""Storing, revoking and recognising API keys. Who may make which key is judged in `key_making`.

Invariants:
- a key speaks for its owner, a person or a service account, with the role that the owner has in the team now;
- in a team that asks for it, who rules without a second factor rules nothing: owner and admin count as member;
- a revoked key takes along the keys that were made with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery

from backend.accounts import keys
from backend.accounts.models import ApiKey, Membership, Role, Team, User
from backend.accounts.rights import effective_role
from backend.accounts.scopes import DEFAULT_SCOPES, SCOPES, scopes_of_role

_USE_WRITTEN_EVERY = timedelta(minutes=1)  # a busy key would otherwise write a row with every request


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a request comes from: a key of one team, with the role that its owner has there now."""

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
        revoked += wanted
        wanted = list(ApiKey.objects.filter(created_with__in=wanted).values_list("pk", flat=True))
    return revoked


def recognise_api_key(text: str, *, now: datetime) -> Caller | None:
    """Whom a key speaks for; nobody if it is malformed, unknown, revoked, expired, or its owner has left the team."""
    if not keys.is_well_formed(text):
        return None
    membership = Membership.objects.filter(user=OuterRef("owner"), team=OuterRef("team"))
    row = (
        ApiKey.objects.select_related("team", "owner")
        .annotate(role=Subquery(membership.values("role")))
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now), prefix=keys.prefix_of(text), revoked_at=None)
        .filter(owner__is_active=True, role__isnull=False)
        .first()
    )
    if row is None or not keys.matches(text, row.secret_sha256):
        return None
    _note_use(row, now=now)
    return Caller(key=row, user=row.owner, team=row.team, role=effective_role(row.owner, row.team, Role(row.role)))


def _note_use(key: ApiKey, *, now: datetime) -> None:
    if key.last_used_at is None or key.last_used_at < now - _USE_WRITTEN_EVERY:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
