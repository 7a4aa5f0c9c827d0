"""The demo tenant: a user, a team, a project, an API key, and a pool.

Invariant: idempotent. It creates what is missing and repairs what is wrong, so it may run at every start; an operator's
additions stay unchanged.
"""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from backend.accounts.addresses.proved import vouch_for
from backend.accounts.keys.tokens import is_well_formed, prefix_of
from backend.accounts.models import ApiKey, Membership, Project, Role, Team, User
from backend.accounts.services import create_api_key, recognise_api_key
from backend.pools.models import Device, ResourcePool, TeamQuota

EMAIL = "demo@laminar.local"
TEAM, PROJECT, POOL = "Demo", "First steps", "demo"
CAPACITY = 8  # slots on a CPU pool: the demo job takes three, so a second one fits too


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    user: User
    team: Team
    project: Project
    pool: ResourcePool
    api_key: str
    """The requested key, or a new one if that is unknown, revoked or expired."""


@transaction.atomic
def ensure_demo(*, password: str, wanted_api_key: str | None, now: datetime) -> Demo:
    # Serializes concurrent starts, which would otherwise create two teams.
    pool, _ = ResourcePool.objects.get_or_create(
        name=POOL, defaults={"flavor": "cpu", "capacity": CAPACITY, "device": Device.CPU}
    )
    pool = ResourcePool.objects.select_for_update(no_key=True).get(pk=pool.pk)
    user = _ensure_user(password)
    team = _ensure_team(user)
    project, _ = Project.objects.get_or_create(team=team, name=PROJECT)
    TeamQuota.objects.get_or_create(pool=pool, team=team, defaults={"nominal": CAPACITY})
    return Demo(
        user=user, team=team, project=project, pool=pool, api_key=_ensure_api_key(user, team, wanted_api_key, now=now)
    )


def _ensure_user(password: str) -> User:
    user = User.objects.filter(email=EMAIL).first() or User(email=EMAIL)
    if user.pk is None or not user.is_active or not user.check_password(password):
        user.is_active = True
        user.set_password(password)
        user.save()
    vouch_for(user)
    return user


def _ensure_team(user: User) -> Team:
    team = Team.objects.filter(memberships__user=user, name=TEAM).order_by("created_at").first()
    team = team or Team.objects.create(name=TEAM)
    Membership.objects.update_or_create(user=user, team=team, defaults={"role": Role.OWNER})
    return team


def _ensure_api_key(user: User, team: Team, wanted: str | None, *, now: datetime) -> str:
    if wanted is None:
        return create_api_key(team=team, created_by=user, name="demo")[1]
    caller = recognise_api_key(wanted, now=now)
    if caller is not None and caller.team == team:
        return wanted
    return _import_key(user, team, wanted) or create_api_key(team=team, created_by=user, name="demo")[1]


def _import_key(user: User, team: Team, wanted: str) -> str | None:
    """Imports a key that outlived its database (its file was kept, the data was not)."""
    if not is_well_formed(wanted) or ApiKey.objects.filter(prefix=prefix_of(wanted)).exists():
        return None
    return create_api_key(team=team, created_by=user, name="demo", text=wanted)[1]
