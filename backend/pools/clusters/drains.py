"""Hosts drained from a Ray, for a repair or for good.

    drained ──▶ new attempts avoid it ──▶ running jobs end, or are paused ──▶ given back

Invariants:
- a host belongs to a Ray, so every pool on that Ray avoids it; draining and returning are idempotent;
- a host is identified by its name, so it stays drained after a restart; its current ids are fetched at each launch;
- a pool's remaining devices are counted as if all running jobs were on the other hosts: too few for a while, but never
  so many that a job starts without room.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from django.db import transaction

from backend.accounts.operators.acting import Operator
from backend.errors import Conflict
from backend.pools.changes import pool_changed
from backend.pools.clusters.addresses import address_of
from backend.pools.clusters.probes import RayHost, count_devices, device_of, probe_of
from backend.pools.models import ClusterProbe, DrainedHost, ResourcePool
from engine.spec.labels import is_chosen

NODE_ID: Final = "ray.io/node-id"
"""Ray's own label of every host."""
LONGEST_REASON: Final = 200


class HostsChosenById(Conflict):
    """The pool selects its hosts by Ray's ids. Remove this host from the pool's labels instead."""

    code = "hosts_chosen_by_id"


class HostUnknown(Conflict):
    """The pool's Ray had no host of this name at its last check. It is checked every 30 seconds."""

    code = "host_unknown"


def drain(operator: Operator, pool: ResourcePool, name: str, *, reason: str, now: datetime) -> DrainedHost:
    """Drains a host that the pool was last seen to have. Raises `HostUnknown`, `HostsChosenById`."""
    neighbours = _pools_on_same_ray(pool)
    if any(NODE_ID in each.labels for each in neighbours):
        raise HostsChosenById
    with transaction.atomic():
        seen = [host for host in hosts_seen(probe_of(pool)) if host.name == name]
        if not seen:
            raise HostUnknown
        row, is_new = DrainedHost.objects.get_or_create(
            ray_url=pool.ray_url,
            name=name,
            defaults={
                "at": now,
                "by": operator.name,
                "reason": reason[:LONGEST_REASON],
                "labels": dict(seen[0].labels),
                "cpus": sum(host.cpus for host in seen),
                "gpus": sum(host.gpus for host in seen),
            },
        )
        if is_new:
            _note(operator, neighbours, "host.drained", row, now=now)
    return row


def give_back(operator: Operator, pool: ResourcePool, name: str, *, now: datetime) -> bool:
    """Allows jobs on the host again. False: they were allowed already."""
    with transaction.atomic():
        row = DrainedHost.objects.select_for_update().filter(ray_url=pool.ray_url, name=name).first()
        if row is None:
            return False
        DrainedHost.objects.filter(pk=row.pk).delete()
        _note(operator, _pools_on_same_ray(pool), "host.given_back", row, now=now)
    return True


def drained_of(pool: ResourcePool) -> Sequence[DrainedHost]:
    rows = DrainedHost.objects.filter(ray_url=pool.ray_url).order_by("name")
    return [row for row in rows if is_chosen(row.labels, pool.labels)]


def ids_to_avoid(pool: ResourcePool, hosts: Collection[RayHost]) -> list[str]:
    names = {row.name for row in drained_of(pool)}
    return sorted(host.id for host in hosts if host.name in names)


def devices_out(pool: ResourcePool) -> int:
    """Unavailable devices of the capacity. An autoscaling Ray replaces its drained hosts."""
    drained = [] if pool.autoscales else drained_of(pool)
    probe = probe_of(pool) if drained else None
    if probe is None or probe.seen_at is None:
        return 0
    names, hosts = {row.name for row in drained}, hosts_seen(probe)
    left = count_devices(device_of(pool, hosts), [host for host in hosts if host.name not in names])
    promised = max(probe.promised or 0, pool.capacity, 1)
    available = pool.capacity if left >= promised else left * pool.capacity // promised
    return pool.capacity - available


def hosts_seen(probe: ClusterProbe | None) -> list[RayHost]:
    known = RayHost.__dataclass_fields__
    rows = probe.hosts if probe else []
    return [RayHost(**{name: value for name, value in row.items() if name in known}) for row in rows]


def _pools_on_same_ray(pool: ResourcePool) -> list[ResourcePool]:
    return [each for each in ResourcePool.objects.order_by("pk") if address_of(each).url == pool.ray_url]


def _note(operator: Operator, pools: Sequence[ResourcePool], action: str, row: DrainedHost, *, now: datetime) -> None:
    for pool in pools:
        pool_changed()(pool.pk, now)
    operator.record(action, row.name, now=now, data={"ray_url": row.ray_url, "reason": row.reason})
