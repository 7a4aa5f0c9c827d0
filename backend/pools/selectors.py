"""What a pool has, who holds it, and who may."""

from collections.abc import Mapping

from django.db.models import QuerySet, Sum

from backend.accounts.models import Team
from backend.pools.models import Reservation, ResourcePool, TeamQuota


def nominal_of(team: Team, pool: ResourcePool) -> int:
    """A team without a quota in a pool may use none of it."""
    return TeamQuota.objects.filter(team=team, pool=pool).values_list("nominal", flat=True).first() or 0


def pools_of(team: Team) -> QuerySet[ResourcePool]:
    """The pools in which the team may run something."""
    return ResourcePool.objects.filter(quotas__team=team, quotas__nominal__gt=0).order_by("name")


def nominals_in(pool: ResourcePool) -> Mapping[str, int]:
    return dict(TeamQuota.objects.filter(pool=pool).values_list("team_id", "nominal"))


def use_by_team(pool: ResourcePool) -> Mapping[str, int]:
    """Devices held right now, by team id: summed from live reservations, never counted beside them."""
    live = Reservation.objects.filter(pool=pool, released_at__isnull=True)
    return dict(live.values_list("team_id").annotate(held=Sum("devices")).order_by())
