"""Applies the presets of a spec's model and pool, if the model's shape and the pool's devices are known here.

Invariant: a preview shows exactly the spec that would be submitted.
"""

from collections.abc import Sequence

from backend.accounts.models import Team
from backend.jobs.submitting.fitting import shape_of
from backend.pools.models import Device, RayLook, ResourcePool, TeamQuota
from backend.pools.selectors import most_of, most_within
from engine.spec.fit.need import GB
from engine.spec.job import JobSpec
from engine.spec.presets import by_model
from engine.spec.presets.by_pool import PoolSize
from engine.spec.presets.preset import Preset
from engine.spec.vllm_label import has_vllm


def apply_presets(spec: JobSpec, team: Team, pool: ResourcePool, quotas: Sequence[TeamQuota] | None = None) -> JobSpec:
    """`quotas`: of all teams in the pool, if already read."""
    shape = shape_of(spec.model.source, team)
    return by_model.apply_presets(spec, shape, None if shape is None else _size_of(pool, team, spec, quotas))


def active_presets(spec: JobSpec, team: Team, pool: ResourcePool) -> tuple[Preset, ...]:
    shape = shape_of(spec.model.source, team)
    return by_model.active_presets(spec, shape, None if shape is None else _size_of(pool, team, spec, None))


def _size_of(pool: ResourcePool, team: Team, spec: JobSpec, quotas: Sequence[TeamQuota] | None) -> PoolSize | None:
    """The part of the pool that this team may use. None if it has no GPUs or their size is unknown."""
    if pool.device_gb is None or pool.device == Device.CPU:
        return None
    preemptible = spec.placement.preemptible
    most = (
        most_of(team, pool, preemptible=preemptible)
        if quotas is None
        else most_within(quotas, team, pool, preemptible=preemptible)
    )
    look = RayLook.objects.filter(pool=pool).first()
    hosts = look.hosts if look else []
    return PoolSize(
        num_devices=min(pool.capacity, most),
        device_bytes=pool.device_gb * GB,
        has_vllm=all(has_vllm(host.get("labels", {})) for host in hosts),
    )
