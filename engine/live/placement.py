"""Where the actors go: one placement group for the job, all of it or nothing.

Invariants:
- GPUs are asked for only where the cluster has some; on CPU every actor takes a fraction of a core, so that several
  small jobs share a machine and the control plane's quota, not Ray, is what bounds them;
- a group that cannot be had in time is a clear failure, not a wait for ever.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from engine.spec.job import JobSpec

TRAINER_BUNDLE: Final = 0
DATA_BUNDLE: Final = 1
RELAY_BUNDLE: Final = 2
FIRST_ROLLOUT_BUNDLE: Final = 3

# A slot on a CPU pool. The whole demo (trainer, data, relay, two replicas) takes 0.4 cores of Ray's book-keeping.
TRAINER_CPUS: Final = 0.1
ROLLOUT_CPUS: Final = 0.1
SERVICE_CPUS: Final = 0.05
PLACED_WITHIN_S: Final = 300.0
WAIT_SLICE_S: Final = 1.0


class NoCapacity(Exception):
    """The cluster has no room for this job."""

    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    group: PlacementGroup
    has_gpus: bool

    def options(self, bundle: int, spec: JobSpec) -> dict[str, Any]:
        """What Ray is asked for this actor."""
        strategy = PlacementGroupSchedulingStrategy(placement_group=self.group, placement_group_bundle_index=bundle)
        wanted = bundle_resources(bundle, spec, has_gpus=self.has_gpus)
        return {
            "num_cpus": wanted["CPU"],
            "num_gpus": wanted.get("GPU", 0),
            "scheduling_strategy": strategy,
            "max_restarts": 0,
        }


def bundle_resources(bundle: int, spec: JobSpec, *, has_gpus: bool) -> dict[str, float]:
    if bundle in (DATA_BUNDLE, RELAY_BUNDLE):
        return {"CPU": SERVICE_CPUS}
    is_trainer = bundle == TRAINER_BUNDLE
    devices = spec.resources.trainer_devices if is_trainer else spec.resources.devices_per_replica
    cpus = TRAINER_CPUS if is_trainer else ROLLOUT_CPUS
    return {"CPU": cpus, "GPU": float(devices)} if has_gpus else {"CPU": cpus * devices}


def place(spec: JobSpec, *, heed: Callable[[], None]) -> Placement:
    """`heed` raises if the wait shall end."""
    capacity: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    has_gpus = capacity.get("GPU", 0) > 0
    num_bundles = FIRST_ROLLOUT_BUNDLE + spec.rollout.replicas
    bundles = [bundle_resources(bundle, spec, has_gpus=has_gpus) for bundle in range(num_bundles)]
    group = placement_group(bundles, strategy="PACK")
    try:
        _wait_for(group, heed)
    except BaseException:
        ray.util.remove_placement_group(group)
        raise
    return Placement(group=group, has_gpus=has_gpus)


def _wait_for(group: PlacementGroup, heed: Callable[[], None]) -> None:
    give_up_at = time.monotonic() + PLACED_WITHIN_S
    while not group.wait(WAIT_SLICE_S):
        heed()
        if time.monotonic() >= give_up_at:
            capacity: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            raise NoCapacity(f"no room for {group.bundle_specs} in {PLACED_WITHIN_S:.0f} s; Ray has {capacity}")
