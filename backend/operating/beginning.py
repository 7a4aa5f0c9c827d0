"""Bootstrap of a site: an operator, and a team with a project, a pool and a quota.

Invariants:
- existing objects stay unchanged: a repetition changes nothing, and a conflicting wish is refused with the way to
  change it;
- everything happens in one transaction, and is in the team's audit log;
- no password is typed or shown: a new operator sets one by a single-use link.
"""

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Sum
from django.urls import reverse

from backend.accounts.addresses.proved import is_proved, vouch_for
from backend.accounts.models import Membership, Project, Role, Team, User
from backend.accounts.people.teams import FIRST_PROJECT
from backend.accounts.signing_in.resets import make_reset, may_reset, reset_link_of
from backend.audit.services import record_action
from backend.errors import Conflict
from backend.pools.models import Device, ResourcePool, TeamQuota
from backend.pools.services import QuotaTerms, set_quota

FIRST_TEAM, FIRST_POOL = "Operators", "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of a new pool."""

    capacity: int
    flavor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    email: str
    team: str = FIRST_TEAM
    project: str = FIRST_PROJECT
    pool: str = FIRST_POOL
    capacity: int | None = None
    """None: keep the present capacity."""
    quota: int | None = None
    """Of the team in the pool. None: keep the present one; for a new quota, all devices not promised to other teams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    user: User
    team: Team
    project: Project
    pool: ResourcePool
    quota: TeamQuota
    made: tuple[str, ...]
    """A sentence for each new object; empty: everything existed."""
    link: str
    """For a new operator to set a password; empty if the operator existed."""


class Otherwise(Conflict):
    """It exists already with other values."""


def previous_wish() -> Wish | None:
    """The names of the site's first bootstrap, for a repeated run."""
    operator = User.objects.filter(is_staff=True, is_active=True).order_by("pk").first()
    if operator is None:
        return None
    own = Team.objects.filter(memberships__user=operator, memberships__role=Role.OWNER).order_by("created_at").first()
    project = own.projects.order_by("created_at").first() if own else None
    quota = TeamQuota.objects.filter(team=own).select_related("pool").order_by("pk").first() if own else None
    return Wish(
        email=operator.email,
        team=own.name if own else FIRST_TEAM,
        project=project.name if project else FIRST_PROJECT,
        pool=quota.pool.name if quota else FIRST_POOL,
    )


def pool_called(name: str) -> ResourcePool | None:
    return ResourcePool.objects.filter(name=name).first()


@transaction.atomic
def begin(wish: Wish, devices: Devices | None, *, now: datetime) -> Begun:
    """`devices`: for a new pool. Raises `Otherwise`."""
    pool, is_new_pool = _ensure_pool(wish, devices)  # its lock serializes concurrent runs
    made = [f"pool {pool.name} with {pool.capacity} devices ({pool.flavor})"] if is_new_pool else []
    user, is_new_user = _ensure_operator(wish.email, made)
    team = _ensure_team(wish.team, user, made)
    project, is_new_project = Project.objects.get_or_create(team=team, name=wish.project)
    made += [f"project {project.name} of team {team.name}"] if is_new_project else []
    quota = _ensure_quota(wish, pool, team, made, now=now)
    link = reset_link_of(make_reset(user, now=now, by_operator=True)) if is_new_user else ""
    if made:
        data = {"made": made}
        record_action(team_id=team.pk, actor="operator", action="site.begun", target=user.public_id, now=now, data=data)
    return Begun(user=user, team=team, project=project, pool=pool, quota=quota, made=tuple(made), link=link)


def awaits_a_password(user: User) -> bool:
    return not user.has_usable_password() and may_reset(user, by_operator=True)


def _ensure_pool(wish: Wish, devices: Devices | None) -> tuple[ResourcePool, bool]:
    if devices is not None:
        is_of_cpus = devices.flavor.lower() == Device.CPU
        defaults = {"capacity": devices.capacity, "flavor": devices.flavor, "device": Device.CPU if is_of_cpus else ""}
        _, is_new = ResourcePool.objects.get_or_create(name=wish.pool, defaults=defaults)
    else:
        is_new = False
    pool = ResourcePool.objects.select_for_update(no_key=True).get(name=wish.pool)
    if wish.capacity is not None and wish.capacity != pool.capacity:
        where = settings.ENVIRONMENT.public_url + reverse("operator_pool", args=[pool.pk])
        raise Otherwise(
            f"the pool {pool.name} has {pool.capacity} devices, not {wish.capacity}: "
            f"an operator can change that on {where}"
        )
    return pool, is_new


def _ensure_operator(email: str, made: list[str]) -> tuple[User, bool]:
    user = User.objects.filter(email__iexact=email).first()
    if user is None:
        made.append(f"operator {email}")
        return User.objects.create_superuser(email), True
    if not user.is_active or user.is_service:
        raise Otherwise(f"the account {user.email} is closed or a service account. Use another address")
    if not (user.is_staff and user.is_superuser):
        user.is_staff = user.is_superuser = True
        user.save(update_fields=["is_staff", "is_superuser"])
        made.append(f"{user.email} is now an operator")
    if not is_proved(user):
        vouch_for(user)
        made.append(f"the address {user.email} is now verified")
    return user, False


def _ensure_team(name: str, user: User, made: list[str]) -> Team:
    """A team of the operator; other teams may have the same name."""
    team = Team.objects.filter(memberships__user=user, name=name).order_by("created_at").first()
    if team is None:
        team = Team.objects.create(name=name)
        Membership.objects.create(team=team, user=user, role=Role.OWNER)
        made.append(f"team {name}, owned by {user.email}")
    return team


def _ensure_quota(wish: Wish, pool: ResourcePool, team: Team, made: list[str], *, now: datetime) -> TeamQuota:
    existing = TeamQuota.objects.filter(pool=pool, team=team).first()
    if existing is not None:
        if wish.quota is not None and wish.quota != existing.nominal:
            raise Otherwise(
                f"the team {team.name} has a quota of {existing.nominal} in the pool {pool.name}, not {wish.quota}: "
                f"change it with PUT /api/v1/pools/{pool.pk}/quotas/{team.pk}, or on "
                + settings.ENVIRONMENT.public_url
                + reverse("operator_pool", args=[pool.pk])
            )
        return existing
    promised = TeamQuota.objects.filter(pool=pool).aggregate(sum=Sum("nominal"))["sum"] or 0
    nominal = max(0, pool.capacity - promised) if wish.quota is None else wish.quota
    terms = QuotaTerms(nominal=nominal, borrow_limit=None, lend_limit=None, weight=1.0)
    made.append(f"a quota of {nominal} of these devices for team {team.name}")
    return set_quota(pool, team, terms, if_match=None, actor="operator", now=now)
