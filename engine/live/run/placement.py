"""The places of the actors: one placement group for the job, all of it or nothing.

    bundle 0: trainer    bundle 1: data, environment    bundle 2 + h: relay h and the first replicas of its host, and
                                                                      further workers of the environment in turns
    behind them: one for each further rank of the trainer, which may be on other hosts
    an evaluation's bundle 0 has no device: what holds its weights needs a host's memory
    beside it: elastic replicas, those beyond placement.min_replicas, each on the host of its relay

Invariants:
- a relay and its replicas share a host: weights go from one to the others by shared memory;
- an elastic replica's devices are Ray's again the moment that it has left: no group keeps them;
- GPUs are asked for only where the cluster has some; on CPU every actor takes a fraction of a core, so that several
  small jobs share a machine and the control plane's quota, not Ray, is what bounds them;
- a group that cannot be had in time is a clear failure, not a wait forever.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from engine.pipeline.messages.addresses import TRAINER, Address, environment_address, rollout_address
from engine.pipeline.plan import Plan
from engine.spec.job import JobSpec

TRAINER_BUNDLE: Final = 0
SERVICE_BUNDLE: Final = 1
FIRST_HOST_BUNDLE: Final = 2

# A slot on a CPU pool. The whole demo takes half a core of Ray's book-keeping.
TRAINER_CPUS: Final = 0.1
ROLLOUT_CPUS: Final = 0.1
SERVICE_CPUS: Final = 0.05
NUM_SERVICES: Final = 2
PLACED_WITHIN_S: Final = 300.0
WAIT_SLICE_S: Final = 1.0


class NoCapacity(Exception):
    """The cluster has no room for this job."""

    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    group: PlacementGroup
    has_gpus: bool
    spec: JobSpec

    def options(self, part: Address) -> dict[str, Any]:
        """Ray's options for this actor."""
        return self._options(bundle_of(part, self.spec), part)

    def rank_options(self) -> list[dict[str, Any]]:
        """For each rank of the trainer but the first."""
        first = FIRST_HOST_BUNDLE + self.spec.rollout.relays
        return [self._options(first + rank, TRAINER) for rank in range(num_ranks(self.spec) - 1)]

    def _options(self, bundle: int, part: Address) -> dict[str, Any]:
        wanted = resources_of(part, self.spec, has_gpus=self.has_gpus)
        strategy: Any = PlacementGroupSchedulingStrategy(
            placement_group=self.group, placement_group_bundle_index=bundle
        )
        if is_elastic(part, self.spec):
            strategy = NodeAffinitySchedulingStrategy(node_id=self._node_of(bundle), soft=False)
        return {
            "num_cpus": wanted["CPU"],
            "num_gpus": wanted.get("GPU", 0),
            "scheduling_strategy": strategy,
            "max_restarts": 0,
        }

    def _node_of(self, bundle: int) -> str:
        table: dict[str, Any] = placement_group_table(self.group)
        return str(table["bundles_to_node_id"][bundle])


def is_elastic(part: Address, spec: JobSpec) -> bool:
    return part.kind == "rollout" and part.number >= (spec.placement.min_replicas or spec.rollout.replicas)


def num_ranks(spec: JobSpec) -> int:
    """A process for each device; without a device, one that holds an evaluation's weights."""
    return max(spec.trainer_devices, 1)


def bundle_of(part: Address, spec: JobSpec) -> int:
    match part.kind:
        case "trainer":
            return TRAINER_BUNDLE
        case "relay":
            return FIRST_HOST_BUNDLE + part.number
        case "rollout":
            return FIRST_HOST_BUNDLE + Plan.from_spec(spec).relay_of(part.number)
        case "environment" if part.number > 0:
            return FIRST_HOST_BUNDLE + (part.number - 1) % spec.rollout.relays
        case _:
            return SERVICE_BUNDLE


def resources_of(part: Address, spec: JobSpec, *, has_gpus: bool) -> dict[str, float]:
    match part.kind:
        case "trainer" if not spec.only_evaluates:
            devices, cpus = spec.trainer_devices // num_ranks(spec), TRAINER_CPUS
        case "rollout":
            devices, cpus = spec.resources.devices_per_replica, ROLLOUT_CPUS
        case _:
            return {"CPU": SERVICE_CPUS}
    return {"CPU": cpus, "GPU": float(devices)} if has_gpus else {"CPU": cpus * devices}


def bundles(spec: JobSpec, *, has_gpus: bool) -> list[dict[str, float]]:
    service = {"CPU": SERVICE_CPUS * NUM_SERVICES}
    hosts = [_host(host, spec, has_gpus=has_gpus) for host in range(spec.rollout.relays)]
    trainer = resources_of(TRAINER, spec, has_gpus=has_gpus)
    return [trainer, service, *hosts, *([trainer] * (num_ranks(spec) - 1))]


def _host(host: int, spec: JobSpec, *, has_gpus: bool) -> dict[str, float]:
    plan = Plan.from_spec(spec)
    fewest = spec.placement.min_replicas or spec.rollout.replicas
    num_replicas = sum(plan.relay_of(replica) == host for replica in range(fewest))
    one = resources_of(rollout_address(0), spec, has_gpus=has_gpus)
    whole = {kind: round(amount * num_replicas, 4) for kind, amount in one.items()}
    workers = map(environment_address, range(1, spec.environment.workers))
    num_services = 1 + sum(bundle_of(worker, spec) == FIRST_HOST_BUNDLE + host for worker in workers)
    return {**whole, "CPU": round(whole["CPU"] + SERVICE_CPUS * num_services, 4)}


def place(spec: JobSpec, *, check: Callable[[], None]) -> Placement:
    """`check` raises if the wait shall end."""
    capacity: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    has_gpus = capacity.get("GPU", 0) > 0
    if not has_gpus:
        refuse_what_needs_gpus(spec)
    group = placement_group(bundles(spec, has_gpus=has_gpus), strategy="PACK")
    try:
        _wait_for(group, check)
    except BaseException:
        ray.util.remove_placement_group(group)
        raise
    return Placement(group=group, has_gpus=has_gpus, spec=spec)


def refuse_what_needs_gpus(spec: JobSpec) -> None:
    if spec.optimizer.offload and not spec.only_evaluates:
        raise ValueError(
            "optimizer.offload has no effect in this job: Ray has no GPU, and a CPU's memory is the host's. "
            "Got True; leave it at False."
        )


def _wait_for(group: PlacementGroup, check: Callable[[], None]) -> None:
    give_up_at = time.monotonic() + PLACED_WITHIN_S
    while not group.wait(WAIT_SLICE_S):
        check()
        if time.monotonic() >= give_up_at:
            capacity: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            raise NoCapacity(f"no room for {group.bundle_specs} in {PLACED_WITHIN_S:.0f} s; Ray has {capacity}")
