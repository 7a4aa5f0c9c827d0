"""Compares the devices of a pool's Ray with those promised from it.

    hosts of one Ray ──chosen by each pool's labels──▶ devices of a pool ◀── promised: its capacity, and that of
                                                                             other pools on its hosts or some of them

Invariants:
- a missing device could not be had in any arrangement; without missing devices Ray may still have given some to others;
- a Ray that does not answer is recorded, and its last known hosts are kept;
- a probe changes neither waiting nor running jobs. Its results are for operators and pages.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from backend.pools.models import ClusterProbe, Device, DrainedHost, ResourcePool
from engine.spec.control import CPUS_OF_A_DEVICE
from engine.spec.labels import is_chosen

log = logging.getLogger(__name__)

FAILING_AFTER: Final = timedelta(seconds=60)  # two probes; a restarting Ray is back within one
MOST_HOSTS_KEPT: Final = 500
PRECISION: Final = 4  # Ray counts to this many decimals; sums of floats are less exact


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHost:
    id: str
    name: str
    labels: Mapping[str, str]
    cpus: float
    gpus: float
    kinds: tuple[str, ...] = ()
    """Ray's names of its accelerators, such as H100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    hosts: tuple[RayHost, ...]
    device: Device
    devices: int
    promised: int


def find(pools: Sequence[ResourcePool], hosts: Sequence[RayHost]) -> Mapping[str, Found]:
    """By pool; all pools must be on the Ray with these hosts."""
    chosen = {pool.pk: tuple(host for host in hosts if is_chosen(host.labels, pool.labels)) for pool in pools}
    ids = {pool_id: {host.id for host in of_pool} for pool_id, of_pool in chosen.items()}
    device = {pool.pk: device_of(pool, chosen[pool.pk]) for pool in pools}

    def is_within(other: ResourcePool, pool: ResourcePool) -> bool:
        if other.pk == pool.pk:
            return True
        return device[other.pk] == device[pool.pk] and bool(ids[other.pk]) and ids[other.pk] <= ids[pool.pk]

    return {
        pool.pk: Found(
            hosts=chosen[pool.pk],
            device=device[pool.pk],
            devices=count_devices(device[pool.pk], chosen[pool.pk]),
            promised=sum(other.capacity for other in pools if is_within(other, pool)),
        )
        for pool in pools
    }


def note_found(pools: Sequence[ResourcePool], hosts: Sequence[RayHost], *, now: datetime) -> None:
    found_of = find(pools, hosts)
    for pool in pools:
        of_pool = found_of[pool.pk]
        is_failing = of_pool.devices + _count_drained(pool, of_pool) < of_pool.promised and not pool.autoscales
        kept = [asdict(host) | {"labels": dict(host.labels)} for host in of_pool.hosts[:MOST_HOSTS_KEPT]]
        _note(pool, is_failing=is_failing, now=now, problem="", seen_at=now, hosts=kept, devices=of_pool.devices,
              promised=of_pool.promised)  # fmt: skip


def _count_drained(pool: ResourcePool, found: Found) -> int:
    """Devices of drained hosts that are gone, which are not counted as missing."""
    rows = DrainedHost.objects.filter(ray_url=pool.ray_url).exclude(name__in=[host.name for host in found.hosts])
    gone = [
        RayHost(id="", name=row.name, labels=row.labels, cpus=row.cpus, gpus=row.gpus)
        for row in rows
        if is_chosen(row.labels, pool.labels)
    ]
    return count_devices(found.device if found.hosts else device_of(pool, gone), gone)


def note_away(pools: Sequence[ResourcePool], problem: str, *, now: datetime) -> None:
    for pool in pools:
        _note(pool, is_failing=True, now=now, problem=problem[:300])


def _note(pool: ResourcePool, *, is_failing: bool, now: datetime, **seen: object) -> None:
    before = ClusterProbe.objects.filter(pool=pool).first()
    since = (before.failing_since if before else None) or now
    probe, _ = ClusterProbe.objects.update_or_create(
        pool=pool, defaults={**seen, "at": now, "failing_since": since if is_failing else None}
    )
    was_failing = before is not None and before.failing_since is not None
    if is_failing and not was_failing:
        log.error("pool=%s %s", pool.name, describe_problem(probe))
    if was_failing and not is_failing:
        log.warning("pool=%s has its promised devices again: %s", pool.name, probe.devices)


def describe_problem(probe: ClusterProbe) -> str:
    """The problem, for operators."""
    if probe.problem:
        return f"Ray does not respond: {probe.problem}"
    return f"Ray has {probe.devices} of the {probe.promised} devices promised on these hosts"


def is_failing(probe: ClusterProbe | None, now: datetime) -> bool:
    return probe is not None and probe.failing_since is not None and now - probe.failing_since >= FAILING_AFTER


def failing_probes(now: datetime) -> list[ClusterProbe]:
    """Every pool whose Ray has been away, or short of devices, for a while: for pages, probes and alarms."""
    probes = ClusterProbe.objects.filter(failing_since__lte=now - FAILING_AFTER).select_related("pool")
    return list(probes.order_by("pool__name"))


def probe_of(pool: ResourcePool) -> ClusterProbe | None:
    return ClusterProbe.objects.filter(pool=pool).first()


def device_of(pool: ResourcePool, hosts: Sequence[RayHost]) -> Device:
    if pool.device:
        return Device(pool.device)
    return Device.GPU if any(host.gpus for host in hosts) else Device.CPU


def count_devices(device: Device, hosts: Sequence[RayHost]) -> int:
    if device == Device.GPU:
        return int(round(sum(host.gpus for host in hosts), PRECISION))
    return int(round(sum(host.cpus for host in hosts) / CPUS_OF_A_DEVICE, PRECISION))
