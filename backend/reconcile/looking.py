"""A look at what each pool's Ray has, against what is promised of it.

Invariants:
- every Ray is looked at by a message of its own, so that one that hangs costs the others nothing;
- what is seen is stored and told (page, metrics, readiness, log); nothing that waits or runs is changed by it.
"""

import logging
from collections.abc import Iterator
from datetime import datetime

from backend.jobs.attempts.launcher import Rays
from backend.pools.clusters.addresses import RayAddress, address_of
from backend.pools.clusters.dashboard import LauncherError
from backend.pools.clusters.looks import note_away, note_found
from backend.pools.models import ResourcePool

log = logging.getLogger(__name__)


def one_pool_of_each_ray() -> Iterator[str]:
    seen: set[RayAddress] = set()
    for pool in ResourcePool.objects.order_by("pk"):
        address = address_of(pool)
        if address not in seen:
            seen.add(address)
            yield pool.pk


def look_at_ray_of(pool_id: str, rays: Rays, *, now: datetime) -> None:
    """For all pools that are on the same one."""
    pool = ResourcePool.objects.filter(pk=pool_id).first()
    if pool is None:
        return
    beside = [other for other in ResourcePool.objects.all() if address_of(other) == address_of(pool)]
    try:
        hosts = rays(pool).hosts()
    except LauncherError as error:
        note_away(beside, str(error), now=now)
    else:
        note_found(beside, hosts, now=now)
