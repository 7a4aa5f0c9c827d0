"""The places of the actors: what the job cannot begin without is reserved at once, all of it or nothing.

    hosts ──▶ plan of places ──▶ one group, a bundle for each rank, relay, replica, and one for data and environment,
      ▲                          each on the host that the plan names
      └── not to be had: planned again with the hosts as they are then, until it is too late

Invariants:
- a bundle is one replica's, whole on one host, and each host of replicas has a relay's;
- an elastic replica's devices are Ray's again the moment that it has left: no group keeps them;
- what begins again where it was takes what its bundle keeps; elsewhere it takes what is free on a host that was chosen;
- GPUs are asked for only where the cluster has some;
- a job for which there is no room in time is a clear failure that says what each host has, not a wait forever.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from engine.live.process.hosts import read_hosts
from engine.pipeline.messages.addresses import (
    DATA,
    TRAINER,
    Address,
    environment_address,
    relay_address,
    rollout_address,
)
from engine.policy.placement import NUM_SERVICES, HostView, JobNeeds, Need, NoRoom, Places, plan_places
from engine.spec.job import JobSpec

PLACED_WITHIN_S: Final = 300.0
# What another job took meanwhile is planned around; a healthy cluster reserves in a fraction of this.
RESERVED_WITHIN_S: Final = 10.0
WAIT_SLICE_S: Final = 1.0
NODE_ID: Final = "ray.io/node-id"


class NoCapacity(Exception):
    """The cluster has no room for this job."""

    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    part: Address
    host: str
    need: Need
    count: int = 1

    @property
    def resources(self) -> dict[str, float]:
        asked = {"CPU": round(self.count * self.need.cpus, 4), "GPU": self.count * self.need.gpus}
        return {kind: amount for kind, amount in asked.items() if amount}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    group: PlacementGroup
    bundles: tuple[Bundle, ...]
    needs: JobNeeds
    places: Places
    hosts: tuple[HostView, ...]
    """As they were when it was planned."""

    def options(self, part: Address, hosts: tuple[str, ...] = ()) -> dict[str, Any]:
        """Ray's options for this actor. `hosts`: of each of its processes; none: where it was planned."""
        return self._options(part, 0, hosts)

    def rank_options(self, hosts: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """For each rank of the trainer but the first."""
        return [self._options(TRAINER, rank, hosts) for rank in range(1, self.needs.num_ranks)]

    def _options(self, part: Address, rank: int, hosts: tuple[str, ...]) -> dict[str, Any]:
        need = self.needs.of(part.kind)
        return {
            "num_cpus": need.cpus,
            "num_gpus": need.gpus,
            "scheduling_strategy": self._strategy(part, rank, hosts[rank] if hosts else None),
            "max_restarts": 0,
        }

    def _strategy(self, part: Address, rank: int, host: str | None) -> Any:
        reserved_for = DATA if part == environment_address(0) else part
        indices = [index for index, bundle in enumerate(self.bundles) if bundle.part == reserved_for]
        if part.kind == "environment" and self.bundles[indices[0]].host not in {each.id for each in read_hosts()}:
            return "DEFAULT"  # it is on any host what it was on this one
        if rank < len(indices) and host in (None, self.bundles[indices[rank]].host):
            return PlacementGroupSchedulingStrategy(
                placement_group=self.group, placement_group_bundle_index=indices[rank]
            )
        host = host or self.places.replicas[part.number]  # only what is elastic has no bundle from the start
        return NodeAffinitySchedulingStrategy(node_id=host, soft=False)


def reserved(places: Places, needs: JobNeeds) -> tuple[Bundle, ...]:
    """All but the elastic replicas."""
    ranks = [Bundle(part=TRAINER, host=host, need=needs.rank) for host in places.ranks]
    services = Bundle(part=DATA, host=places.services, need=needs.service, count=NUM_SERVICES)
    relays = [Bundle(part=relay_address(at), host=host, need=needs.relay) for at, host in enumerate(places.relays)]
    replicas = [
        Bundle(part=rollout_address(at), host=host, need=needs.replica)
        for at, host in enumerate(places.replicas[: needs.fewest_replicas])
    ]
    workers = [
        Bundle(part=environment_address(worker), host=host, need=needs.service)
        for worker, host in enumerate(places.environments, start=1)
    ]
    return (*ranks, services, *relays, *replicas, *workers)


def place(spec: JobSpec, *, num_replicas: int | None = None, check: Callable[[], None]) -> Placement:
    """`num_replicas`: to begin with where there is room; None: all. `check` raises if the wait shall end."""
    give_up_at = time.monotonic() + PLACED_WITHIN_S
    while True:
        hosts = read_hosts()
        has_gpus = any(host.gpus for host in hosts)
        if not has_gpus:
            refuse_what_needs_gpus(spec)
        needs = JobNeeds.of_spec(spec, has_gpus=has_gpus)
        problem = "other jobs take it meanwhile, again and again"
        try:
            places = plan_places(hosts, needs, num_replicas=num_replicas or spec.rollout.replicas)
            bundles = reserved(places, needs)
            group = _reserve(bundles, check)
            if group is not None:
                return Placement(group=group, bundles=bundles, needs=needs, places=places, hosts=hosts)
        except NoRoom as refusal:
            problem = str(refusal)
            time.sleep(WAIT_SLICE_S)
        check()
        if time.monotonic() >= give_up_at:
            raise NoCapacity(f"not placed within {PLACED_WITHIN_S:.0f} s: {problem}")


def _reserve(bundles: tuple[Bundle, ...], check: Callable[[], None]) -> PlacementGroup | None:
    """None: it was not to be had, and nothing of it is kept."""
    group: PlacementGroup = placement_group(
        [bundle.resources for bundle in bundles],
        strategy="PACK",
        bundle_label_selector=[{NODE_ID: bundle.host} for bundle in bundles],
    )
    try:
        give_up_at = time.monotonic() + RESERVED_WITHIN_S
        while not group.wait(WAIT_SLICE_S):
            check()
            if time.monotonic() >= give_up_at:
                ray.util.remove_placement_group(group)
                return None
    except BaseException:
        ray.util.remove_placement_group(group)
        raise
    return group


def refuse_what_needs_gpus(spec: JobSpec) -> None:
    if spec.optimizer.offload and not spec.only_evaluates:
        raise ValueError(
            "optimizer.offload has no effect in this job: Ray has no GPU, and a CPU's memory is the host's. "
            "Got True; leave it at False."
        )
