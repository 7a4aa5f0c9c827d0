"""Pools, device use, and the teams that may use a pool."""

import re
from collections.abc import Iterable, Mapping

from django.db.models import Q, QuerySet, Sum

from backend.accounts.models import Team
from backend.errors import NotFound
from backend.pools.models import Reservation, ResourcePool, TeamQuota

_ID = re.compile(r"[a-z]+_[0-9a-z_]{1,28}", re.ASCII)


def nominal_of(team: Team, pool: ResourcePool) -> int:
    """0 for a team without a quota in the pool."""
    return TeamQuota.objects.filter(team=team, pool=pool).values_list("nominal", flat=True).first() or 0


def most_of(team: Team, pool: ResourcePool, *, preemptible: bool) -> int:
    """The most devices that one job of the team may ever get. A preemptible job may borrow, up to the team's limit and
    to what other teams lend."""
    return most_within(TeamQuota.objects.filter(pool=pool), team, pool, preemptible=preemptible)


def most_within(of_pool: Iterable[TeamQuota], team: Team, pool: ResourcePool, *, preemptible: bool) -> int:
    """The same, from the quotas of all teams in the pool, already read."""
    quotas = {quota.team_id: quota for quota in of_pool}
    mine = quotas.pop(team.pk, None)
    if mine is None:
        return 0
    if not preemptible:
        return min(mine.nominal, pool.capacity)
    reserved = sum(max(0, one.nominal - one.lend_limit) for one in quotas.values() if one.lend_limit is not None)
    lent = pool.capacity - reserved
    return lent if mine.borrow_limit is None else min(lent, mine.nominal + mine.borrow_limit)


def pools_of(team: Team) -> QuerySet[ResourcePool]:
    """The pools in which the team may run jobs, even on borrowed devices only."""
    may_borrow = Q(quotas__borrow_limit__isnull=True) | Q(quotas__borrow_limit__gt=0)
    return ResourcePool.objects.filter(Q(quotas__nominal__gt=0) | may_borrow, quotas__team=team).order_by("name")


def the_pool(pool_id: str, *, of: Team | None = None) -> ResourcePool:
    """`of`: only pools that the team may use. Raises `NotFound`."""
    pools = ResourcePool.objects.all() if of is None else pools_of(of)
    pool = pools.filter(pk=pool_id).first() if _ID.fullmatch(pool_id) else None
    if pool is None:
        raise NotFound("Pool not found.")
    return pool


def the_team(team_id: str) -> Team:
    """Any team, for operators of the platform. Raises `NotFound`."""
    team = Team.objects.filter(pk=team_id).first() if _ID.fullmatch(team_id) else None
    if team is None:
        raise NotFound("Team not found.")
    return team


def quotas_of(team: Team) -> QuerySet[TeamQuota]:
    return TeamQuota.objects.filter(team=team).select_related("pool").order_by("pool__name")


def quotas_in(pool: ResourcePool) -> QuerySet[TeamQuota]:
    return TeamQuota.objects.filter(pool=pool).select_related("team", "pool").order_by("team__name", "team_id")


def use_by_team(pool: ResourcePool) -> Mapping[str, int]:
    """Devices held right now, by team id, summed from live reservations."""
    live = Reservation.objects.filter(pool=pool, released_at__isnull=True)
    return dict(live.values_list("team_id").annotate(held=Sum("devices")).order_by())
