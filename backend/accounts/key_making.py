"""Making and revoking keys: who may make which.

Invariants:
- nobody hands on more than they have: a new key's scopes are among its maker's, and among those of its owner's role;
- a key that makes keys is not limited itself (to a project, to devices, to GPU-hours), or the limit would be gone, and
  what it makes expires no later than it does;
- a key is made for oneself or for a service account of the team, never for another person.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import transaction
from django.db.models import Q, QuerySet

from backend.accounts.acting import Acting
from backend.accounts.ceilings import refuse_limited
from backend.accounts.models import ApiKey, Membership, Project, Role, ServiceAccount, Team
from backend.accounts.scopes import DEFAULT_SCOPES, SCOPES, scopes_of_role
from backend.accounts.service_accounts import locked_service_account
from backend.accounts.services import create_api_key, revoke_keys
from backend.errors import Conflict, Denied, FieldError, Invalid, NotFound

MOST_LIVE_KEYS = 500  # of one team: far more than people and programs need, few enough to look through


class TooManyKeys(Conflict):
    """Your team has as many live keys as a team may have: revoke some."""

    code = "too_many_keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWish:
    name: str
    scopes: Sequence[str] | None = None
    """None: what the owner's role and the maker carry of the usual ones."""
    expires_at: datetime | None = None
    project: Project | None = None
    max_devices: int | None = None
    max_gpu_hours: Decimal | None = None


@transaction.atomic
def make_key(acting: Acting, wish: KeyWish, *, account_id: str | None = None, now: datetime) -> tuple[ApiKey, str]:
    """The key and its text, which nobody can read again. `account_id`: the service account that it speaks for."""
    if account_id is not None or acting.key is not None:
        acting.refuse_unless_ruling()
    if acting.key is not None:
        refuse_limited(acting.key, "makes no keys")
    Team.objects.select_for_update(no_key=True).get(pk=acting.team.pk)  # so that the number of keys is exact
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
        scopes=_scopes(acting, role, wish.scopes),
        expires_at=_expiry(acting, wish.expires_at, now=now),
        project=_project(account, wish.project),
        max_devices=wish.max_devices,
        max_gpu_hours=wish.max_gpu_hours,
    )
    acting.record("key.created", key.pk, now=now, data=_told(key))
    return key, text


@transaction.atomic
def revoke_key(acting: Acting, key_id: str, *, now: datetime) -> None:
    """One's own, or as a ruler of the team any. A key may always end itself."""
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


def _scopes(acting: Acting, role: Role, wanted: Sequence[str] | None) -> Sequence[str]:
    allowed = acting.scopes & scopes_of_role(role, is_operator=acting.user.is_staff)
    if wanted is None:
        return sorted(allowed & set(DEFAULT_SCOPES))
    unknown, beyond = sorted(set(wanted) - set(SCOPES)), sorted(set(wanted) & set(SCOPES) - allowed)
    errors = [
        FieldError(pointer="/scopes", code="scope", message=f"there is no scope {scope[:40]}") for scope in unknown
    ] + [
        FieldError(pointer="/scopes", code="scope", message=f"{scope} is more than you, or the owner's role, may do")
        for scope in beyond
    ]
    if not wanted:
        errors = [FieldError(pointer="/scopes", code="scope", message="name one at least")]
    if errors:
        raise Invalid("These scopes cannot be given to this key.", errors=errors)
    return wanted


def _expiry(acting: Acting, wanted: datetime | None, *, now: datetime) -> datetime | None:
    end = acting.key.expires_at if acting.key else None
    if wanted is None:
        return end
    if wanted <= now:
        place = FieldError(pointer="/expires_at", code="past", message="must lie in the future")
        raise Invalid("This key would have expired before it was made.", errors=[place])
    if end is not None and wanted > end:
        place = FieldError(pointer="/expires_at", code="beyond", message=f"at the latest {end.isoformat()}")
        raise Invalid("A key makes none that outlives it.", errors=[place])
    return wanted


def _project(account: ServiceAccount | None, wanted: Project | None) -> Project | None:
    if account is None or account.project is None:
        return wanted
    if wanted is not None and wanted != account.project:
        place = FieldError(pointer="/project", code="project", message=f"leave it out or give {account.project_id}")
        raise Invalid("This service account belongs to another project.", errors=[place])
    return account.project


def _told(key: ApiKey) -> dict[str, object]:
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
