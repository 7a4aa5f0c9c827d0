"""Creating and revoking keys: who may create which.

Invariants:
- a new key's scopes are a subset of its maker's, and of those of its owner's role;
- a key that creates keys is not limited itself (to a project, devices or GPU-hours), or the limit could be evaded, and
  its keys expire no later than it does;
- a key is created for its maker or for a service account of the team, never for another user.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import transaction
from django.db.models import Q, QuerySet

from backend.accounts.acting import Acting
from backend.accounts.keys.scopes import DEFAULT_SCOPES, SCOPES, scopes_of_role
from backend.accounts.keys.service_accounts import locked_service_account
from backend.accounts.models import ApiKey, Membership, Project, Role, ServiceAccount, Team
from backend.accounts.people.ceilings import refuse_limited
from backend.accounts.services import create_api_key, revoke_keys
from backend.errors import Conflict, Denied, FieldError, Invalid, NotFound

MOST_LIVE_KEYS = 500  # per team: far more than users and programs need, few enough to review


class TooManyKeys(Conflict):
    """Your team has the maximum number of live keys. Revoke some first."""

    code = "too_many_keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWish:
    name: str
    scopes: Sequence[str] | None = None
    """None: the default scopes, as far as the owner's role and the maker have them."""
    expires_at: datetime | None = None
    project: Project | None = None
    max_devices: int | None = None
    max_gpu_hours: Decimal | None = None


@transaction.atomic
def make_key(acting: Acting, wish: KeyWish, *, account_id: str | None = None, now: datetime) -> tuple[ApiKey, str]:
    """The key and its text, which cannot be read again. `account_id`: the service account that will own the key."""
    if account_id is not None or acting.key is not None:
        acting.refuse_unless_ruling()
    if acting.key is not None:
        refuse_limited(acting.key, "cannot create keys")
    Team.objects.select_for_update(no_key=True).get(pk=acting.team.pk)  # makes the count of keys exact
    if live_keys(acting.team, now=now).count() >= MOST_LIVE_KEYS:
        raise TooManyKeys
    account = locked_service_account(acting.team, account_id) if account_id is not None else None
    owner = account.user if account else acting.user
    role = Role(Membership.objects.get(team=acting.team, user=owner).role) if account else acting.role
    key, text = create_api_key(
        team=acting.team,
        created_by=acting.user,
        owner=owner,
        created_with=acting.key,
        name=wish.name,
        scopes=_choose_scopes(acting, role, wish.scopes),
        expires_at=_choose_expiry(acting, wish.expires_at, now=now),
        project=_choose_project(account, wish.project),
        max_devices=wish.max_devices,
        max_gpu_hours=wish.max_gpu_hours,
    )
    acting.record("key.created", key.pk, now=now, data=_describe(key))
    return key, text


@transaction.atomic
def revoke_key(acting: Acting, key_id: str, *, now: datetime) -> None:
    """A user's own keys, or any key of the team for owners and admins. A key may always revoke itself."""
    key = ApiKey.objects.select_for_update(no_key=True).filter(team=acting.team, pk=key_id).first()
    is_own = key is not None and key.owner_id == acting.user.pk and acting.key is None
    is_itself = key is not None and acting.key is not None and acting.key.pk == key.pk
    if key is None or not (is_own or is_itself or acting.rules):
        raise Denied if acting.key is not None and key is not None else NotFound
    if key.revoked_at is None:
        revoked = revoke_keys(ApiKey.objects.filter(pk=key.pk), now=now)
        acting.record("key.revoked", key.pk, now=now, data={"with": [each for each in revoked if each != key.pk]})


def live_keys(team: Team, *, now: datetime) -> QuerySet[ApiKey]:
    unexpired = Q(expires_at__isnull=True) | Q(expires_at__gt=now)
    return ApiKey.objects.filter(unexpired, team=team, revoked_at__isnull=True)


def _choose_scopes(acting: Acting, role: Role, requested: Sequence[str] | None) -> Sequence[str]:
    allowed = acting.scopes & scopes_of_role(role, is_operator=acting.user.is_staff)
    if requested is None:
        return sorted(allowed & set(DEFAULT_SCOPES))
    unknown, excess = sorted(set(requested) - set(SCOPES)), sorted(set(requested) & set(SCOPES) - allowed)
    errors = [
        FieldError(
            pointer="/scopes", code="scope", message=f"unknown scope {scope[:40]}; choose from {', '.join(SCOPES)}"
        )
        for scope in unknown
    ] + [
        FieldError(
            pointer="/scopes", code="scope", message=f"{scope} is not among your scopes or those of the owner's role"
        )
        for scope in excess
    ]
    if not requested:
        errors = [FieldError(pointer="/scopes", code="scope", message="must have at least one scope")]
    if errors:
        raise Invalid("This key cannot have these scopes.", errors=errors)
    return requested


def _choose_expiry(acting: Acting, requested: datetime | None, *, now: datetime) -> datetime | None:
    end = acting.key.expires_at if acting.key else None
    if requested is None:
        return end
    if requested <= now:
        place = FieldError(
            pointer="/expires_at", code="past", message=f"must be in the future; got {requested.isoformat()}"
        )
        raise Invalid("The expiry is in the past.", errors=[place])
    if end is not None and requested > end:
        place = FieldError(
            pointer="/expires_at",
            code="beyond",
            message=f"must be at most {end.isoformat()}; got {requested.isoformat()}",
        )
        raise Invalid("The new key must not expire later than the key that creates it.", errors=[place])
    return requested


def _choose_project(account: ServiceAccount | None, requested: Project | None) -> Project | None:
    if account is None or account.project is None:
        return requested
    if requested is not None and requested != account.project:
        place = FieldError(
            pointer="/project", code="project", message=f"must be {account.project_id} or empty; got {requested.pk}"
        )
        raise Invalid("This service account belongs to another project.", errors=[place])
    return account.project


def _describe(key: ApiKey) -> dict[str, object]:
    return {
        "name": key.name,
        "prefix": key.prefix,
        "owner": key.owner.public_id,
        "scopes": list(key.scopes),
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "project": key.project_id,
        "max_devices": key.max_devices,
        "max_gpu_hours": str(key.max_gpu_hours) if key.max_gpu_hours is not None else None,
    }
