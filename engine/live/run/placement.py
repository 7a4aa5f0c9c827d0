"""Places the actors: reserves at once, all or nothing, what the job needs to start.

    hosts ──▶ plan of places ──▶ one group, a bundle for each rank, relay, replica, and one for data and environment,
      ▲                          each on the host that the plan names
      └── not available: plan again with the current hosts until the timeout; a pending group that any
          host of the pool satisfies makes an autoscaling cluster add hosts

Invariants:
- a bundle is one replica's, whole on one host, and each host of replicas has a relay's;
- Ray gets an elastic replica's devices back as soon as it has left: no group keeps them;
- a part that restarts in its place uses its bundle; elsewhere it uses free resources of the chosen host;
- every process is on a host that matches the pool's selector: the plan has no others, and Ray checks the labels too;
- GPUs are requested by the pool's setting; without one, where its hosts have some;
- a job that does not fit in time fails with a message that lists each host's resources; it does not wait forever.
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
from engine.policy.placement import NUM_SERVICES, JobNeeds, NoRoom, Places, plan_places
from engine.policy.rooms import HostView, Need
from engine.spec.control import PoolTerms
from engine.spec.environments.sandbox import NO_SANDBOX, SANDBOX_LABEL
from engine.spec.job import JobSpec
from engine.spec.labels import written

PLACED_WITHIN_S: Final = 300.0
# Then the plan is made again, without resources that another job took; a healthy cluster reserves much faster.
RESERVED_WITHIN_S: Final = 10.0
WAIT_SLICE_S: Final = 1.0
NODE_ID: Final = "ray.io/node-id"


class NoCapacity(Exception):
    """The cluster has no capacity for this job."""

    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    part: Address
    host: str
    need: Need
    count: int = 1

    @property
    def resources(self) -> dict[str, float]:
        amounts = {"CPU": round(self.count * self.need.cpus, 4), "GPU": self.count * self.need.gpus}
        return {kind: amount for kind, amount in amounts.items() if amount}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    group: PlacementGroup
    bundles: tuple[Bundle, ...]
    needs: JobNeeds
    places: Places
    hosts: tuple[HostView, ...]
    """The hosts at the time of planning."""
    pool: PoolTerms

    def hosts_now(self) -> tuple[HostView, ...]:
        return read_hosts(self.pool.labels)

    def options(self, part: Address, hosts: tuple[str, ...] = ()) -> dict[str, Any]:
        """Ray options for this actor. `hosts`: of each of its processes; empty: the planned ones."""
        return self._options(part, 0, hosts)

    def rank_options(self, hosts: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Ray options for each rank of the trainer but the first."""
        return [self._options(TRAINER, rank, hosts) for rank in range(1, self.needs.num_ranks)]

    def ranks_per_host(self, hosts: tuple[str, ...] = ()) -> int:
        """The fewest ranks of the trainer on one of its hosts."""
        of_ranks = hosts or self.places.ranks
        return min(map(of_ranks.count, of_ranks))

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
            return "DEFAULT"  # the worker can run on any host of the pool
        if rank < len(indices) and host in (None, self.bundles[indices[rank]].host):
            return PlacementGroupSchedulingStrategy(
                placement_group=self.group, placement_group_bundle_index=indices[rank]
            )
        host = host or self.places.replicas[part.number]  # only elastic replicas have no bundle
        return NodeAffinitySchedulingStrategy(node_id=host, soft=False)


def reserved(places: Places, needs: JobNeeds) -> tuple[Bundle, ...]:
    """The bundles to reserve: all parts but the elastic replicas."""
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
    """`num_replicas`: at the start, if they fit; None: all. `check` raises to end the wait."""
    deadline = AwakeDeadline(PLACED_WITHIN_S)

    def look_up() -> None:
        check()
        deadline.left_s()  # polled often: else the wait for a reservation would count as a freeze

    while True:
        hosts = read_hosts(pool.labels)
        has_gpus = takes_gpus(pool, hosts)
        if not has_gpus:
            refuse_offload(spec)
        needs = JobNeeds.of_spec(spec, has_gpus=has_gpus)
        problem = "other jobs keep taking the free resources"
        try:
            places = plan_places(hosts, needs, num_replicas=num_replicas or spec.rollout.replicas)
            bundles = reserved(places, needs)
            on_hosts = [{**pool.labels, NODE_ID: bundle.host} for bundle in bundles]
            group = _reserve([bundle.resources for bundle in bundles], on_hosts, look_up)
            if group is not None:
                return Placement(group=group, bundles=bundles, needs=needs, places=places, hosts=hosts, pool=pool)
        except NoRoom as refusal:
            problem = f"{refusal}{_describe_pool(pool)}"
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


def _describe_pool(pool: PoolTerms) -> str:
    return f" The pool's hosts are those with {written(pool.labels)}." if pool.labels else ""


def _ask_for_hosts(needs: JobNeeds, pool: PoolTerms, check: Callable[[], None]) -> None:
    """Makes an autoscaler add hosts, by a pending reservation. Releases it once granted: the plan picks the hosts."""
    bundles = wanted(needs)
    group = _reserve(bundles, [dict(pool.labels) for _ in bundles], check)
    if group is not None:
        ray.util.remove_placement_group(group)


def wanted(needs: JobNeeds) -> list[dict[str, float]]:
    """The bundles on any hosts. One relay for each replica, as if each replica had a host of its own."""
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
    """Reserves all bundles; None, with nothing reserved, if they are not available in time."""
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


def refuse_offload(spec: JobSpec) -> None:
    if spec.optimizer.offload and not spec.only_evaluates:
        raise ValueError(
            "optimizer.offload has no effect in this job: its pool has no GPU, and a CPU's memory is the host's. "
            "Got True; leave it at False."
        )
