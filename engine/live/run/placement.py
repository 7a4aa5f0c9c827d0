"""The places of the actors: what the job cannot begin without is reserved at once, all of it or nothing.

    hosts ──▶ plan of places ──▶ one group, a bundle for each rank, relay, replica, and one for data and environment,
      ▲                          each on the host that the plan names
      └── not to be had: planned again with the hosts as they are then, until it is too late; a cluster that gets
          hosts by itself is asked for them meanwhile, by a group for which any host of the pool would do

Invariants:
- a bundle is one replica's, whole on one host, and each host of replicas has a relay's;
- an elastic replica's devices are Ray's again the moment that it has left: no group keeps them;
- what begins again where it was takes what its bundle keeps; elsewhere it takes what is free on a host that was chosen;
- every process is on a host that the pool's selector chooses: the plan knows no other, and Ray is told the labels too;
- GPUs are asked for as the pool says; of one that does not, where its hosts have some;
- a job for which there is no room in time is a clear failure that says what each host has, not a wait forever.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from engine.live.process.deadline import AwakeDeadline
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
from engine.spec.control import PoolTerms
from engine.spec.job import JobSpec
from engine.spec.labels import written
from engine.spec.sandbox import NO_SANDBOX, SANDBOX_LABEL

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
    pool: PoolTerms

    def hosts_now(self) -> tuple[HostView, ...]:
        return read_hosts(self.pool.labels)

    def options(self, part: Address, hosts: tuple[str, ...] = ()) -> dict[str, Any]:
        """Ray's options for this actor. `hosts`: of each of its processes; none: where it was planned."""
        return self._options(part, 0, hosts)

    def rank_options(self, hosts: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """For each rank of the trainer but the first."""
        return [self._options(TRAINER, rank, hosts) for rank in range(1, self.needs.num_ranks)]

    def _options(self, part: Address, rank: int, hosts: tuple[str, ...]) -> dict[str, Any]:
        need = self.needs.of(part.kind)
        strategy = self._strategy(part, rank, hosts[rank] if hosts else None)
        chosen = {**self.pool.labels, **({SANDBOX_LABEL: f"!{NO_SANDBOX}"} if self.needs.in_sandbox else {})}
        anywhere = {"label_selector": chosen} if strategy == "DEFAULT" and chosen else {}
        return {
            "num_cpus": need.cpus,
            "num_gpus": need.gpus,
            "scheduling_strategy": strategy,
            "max_restarts": 0,
            **anywhere,
        }

    def _strategy(self, part: Address, rank: int, host: str | None) -> Any:
        reserved_for = DATA if part == environment_address(0) else part
        indices = [index for index, bundle in enumerate(self.bundles) if bundle.part == reserved_for]
        if part.kind == "environment" and self.bundles[indices[0]].host not in {each.id for each in self.hosts_now()}:
            return "DEFAULT"  # it is on any host of the pool what it was on this one
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


def place(spec: JobSpec, pool: PoolTerms, *, num_replicas: int | None = None, check: Callable[[], None]) -> Placement:
    """`num_replicas`: to begin with where there is room; None: all. `check` raises if the wait shall end."""
    deadline = AwakeDeadline(PLACED_WITHIN_S)

    def look_up() -> None:
        check()
        deadline.left_s()  # asked often, or the wait for a reservation would count as sleep

    while True:
        hosts = read_hosts(pool.labels)
        has_gpus = takes_gpus(pool, hosts)
        if not has_gpus:
            refuse_what_needs_gpus(spec)
        needs = JobNeeds.of_spec(spec, has_gpus=has_gpus)
        problem = "other jobs take it meanwhile, again and again"
        try:
            places = plan_places(hosts, needs, num_replicas=num_replicas or spec.rollout.replicas)
            bundles = reserved(places, needs)
            on_hosts = [{**pool.labels, NODE_ID: bundle.host} for bundle in bundles]
            group = _reserve([bundle.resources for bundle in bundles], on_hosts, look_up)
            if group is not None:
                return Placement(group=group, bundles=bundles, needs=needs, places=places, hosts=hosts, pool=pool)
        except NoRoom as refusal:
            problem = f"{refusal}{_of_the_pool(pool)}"
            if pool.autoscales:
                _ask_for_hosts(needs, pool, look_up)
            time.sleep(WAIT_SLICE_S)
        check()
        if not deadline.left_s():
            raise NoCapacity(f"not placed within {PLACED_WITHIN_S:.0f} s: {problem}")


def takes_gpus(pool: PoolTerms, hosts: Sequence[HostView]) -> bool:
    if pool.device is None:
        return any(host.gpus for host in hosts)
    return pool.device == "gpu"


def _of_the_pool(pool: PoolTerms) -> str:
    return f" The pool's hosts are those with {written(pool.labels)}." if pool.labels else ""


def _ask_for_hosts(needs: JobNeeds, pool: PoolTerms, check: Callable[[], None]) -> None:
    """What waits is what an autoscaler counts. Once there is room it is free again: the plan is made of hosts."""
    asked = wanted(needs)
    group = _reserve(asked, [dict(pool.labels) for _ in asked], check)
    if group is not None:
        ray.util.remove_placement_group(group)


def wanted(needs: JobNeeds) -> list[dict[str, float]]:
    """Wherever it may be. A relay beside each replica, as if each were on a host of its own."""
    services = NUM_SERVICES + needs.num_environments - 1
    processes = [
        *[needs.rank] * needs.num_ranks,
        *[needs.replica, needs.relay] * needs.fewest_replicas,
        *[needs.service] * services,
    ]
    return [Bundle(part=DATA, host="", need=need).resources for need in processes]


def _reserve(
    bundles: Sequence[dict[str, float]], selectors: Sequence[dict[str, str]], check: Callable[[], None]
) -> PlacementGroup | None:
    """None: it was not to be had, and nothing of it is kept."""
    group: PlacementGroup = placement_group(
        list(bundles), strategy="PACK", bundle_label_selector=list(selectors) if any(selectors) else None
    )
    try:
        deadline = AwakeDeadline(RESERVED_WITHIN_S)
        while not group.wait(WAIT_SLICE_S):
            check()
            if not deadline.left_s():
                ray.util.remove_placement_group(group)
                return None
    except BaseException:
        ray.util.remove_placement_group(group)
        raise
    return group


def refuse_what_needs_gpus(spec: JobSpec) -> None:
    if spec.optimizer.offload and not spec.only_evaluates:
        raise ValueError(
            "optimizer.offload has no effect in this job: its pool has no GPU, and a CPU's memory is the host's. "
            "Got True; leave it at False."
        )
