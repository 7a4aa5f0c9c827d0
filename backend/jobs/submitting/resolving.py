"""A spec as a submission would store it, and all that follows from it: computed once for submission, preview, page and
validation.

    names ──▶ versions of assets ──▶ shapes of models ──▶ presets ──▶ fit

Invariants:
- a preview shows exactly the spec that would be submitted;
- each model's config.json is read at most once;
- nothing is refused here (`refusals.refuse_spec` does), so a form can also show an incomplete spec.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.accounts.models import Team
from backend.errors import FieldError
from backend.jobs.attempts.asset_catalog import ResolvedAsset
from backend.jobs.submitting.asset_names import resolve_assets
from backend.jobs.submitting.fitting import Fit, Shapes, fit_of, shapes_of
from backend.pools.models import ClusterProbe, Device, ResourcePool, TeamQuota
from backend.pools.selectors import most_of, most_within
from engine.fit.need import GB
from engine.presets.by_model import active_presets, apply_presets
from engine.presets.by_pool import PoolSize
from engine.presets.preset import Preset
from engine.spec.job import JobSpec
from engine.spec.vllm_label import has_vllm


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSpec:
    team: Team
    pool: ResourcePool
    spec: JobSpec
    """With pinned versions and presets."""
    pinned_assets: list[ResolvedAsset]
    unknown: list[FieldError]
    """One error for each name that is no asset of the team."""
    presets: tuple[Preset, ...]
    """Those whose values the spec has."""
    shapes: Shapes
    fit: Fit | None
    """None if unknown."""
    max_devices: int
    """The most that the team may ever use in this pool."""


def resolve_spec(
    spec: JobSpec, *, team: Team, project: str | None, pool: ResourcePool, quotas: Sequence[TeamQuota] | None = None
) -> ResolvedSpec:
    """`project` None: assets of any project. `quotas`: of all teams in the pool, if already read."""
    spec, assets, unknown = resolve_assets(spec, team, project)
    shapes = shapes_of(spec, team)
    preemptible = spec.placement.preemptible
    max_devices = (
        most_of(team, pool, preemptible=preemptible)
        if quotas is None
        else most_within(quotas, team, pool, preemptible=preemptible)
    )
    size = None if shapes.model is None else _size_of(pool, max_devices)
    spec = apply_presets(spec, shapes.model, size)
    return ResolvedSpec(
        team=team,
        pool=pool,
        spec=spec,
        pinned_assets=assets,
        unknown=unknown,
        presets=active_presets(spec, shapes.model, size),
        shapes=shapes,
        fit=fit_of(spec, pool, shapes),
        max_devices=max_devices,
    )


def _size_of(pool: ResourcePool, max_devices: int) -> PoolSize | None:
    """The part of the pool that the team may use. None if it has no GPUs or their size is unknown."""
    if pool.device_gb is None or pool.device == Device.CPU:
        return None
    probe = ClusterProbe.objects.filter(pool=pool).first()
    hosts = probe.hosts if probe else []
    return PoolSize(
        num_devices=min(pool.capacity, max_devices),
        device_bytes=pool.device_gb * GB,
        has_vllm=all(has_vllm(host.get("labels", {})) for host in hosts),
    )
