"""Compares the hosts of each pool's Ray with the devices that the pool promises.

Invariants:
- each Ray has a task of its own, so that one that hangs does not delay the others;
- results are stored and shown (page, metrics, readiness, log); they change no waiting or running job.
"""

import logging
from collections.abc import Iterator
from datetime import datetime

from backend.jobs.attempts.launcher import Rays
from backend.pools.clusters.addresses import RayAddress, address_of
from backend.pools.clusters.dashboard import LauncherError
from backend.pools.clusters.probes import note_away, note_found
from backend.pools.models import ResourcePool

log = logging.getLogger(__name__)


def one_pool_of_each_ray() -> Iterator[str]:
    seen: set[RayAddress] = set()
    for pool in ResourcePool.objects.order_by("pk"):
        address = address_of(pool)
        if address not in seen:
            seen.add(address)
            yield pool.pk


def inspect_ray_of(pool_id: str, rays: Rays, *, now: datetime) -> None:
    """Covers all pools on the same Ray."""
    pool = ResourcePool.objects.filter(pk=pool_id).first()
    if pool is None:
        return
    pools = [other for other in ResourcePool.objects.all() if address_of(other) == address_of(pool)]
    try:
        hosts = rays(pool).hosts()
    except LauncherError as error:
        note_away(pools, str(error), now=now)
    else:
        note_found(pools, hosts, now=now)
