"""Placement of a job on the available hosts: a host for each rank of the trainer, each replica, each relay.

    hosts, with what each has free ──┐
    what one rank, replica, relay    ├──▶ ranks on the fewest hosts ──▶ replicas, fewest first ──▶ a relay a host
    takes, and how many there are ───┘

Invariants:
- no host is given more than it has free;
- a replica is whole on one host; there is a relay on each host that holds replicas, and on no other;
- the trainer's ranks are on as few hosts as hold them; so are the replicas, in the room that is left;
- ranks that shard weights within a host are as many on every host, however many of the hosts' devices are free;
- relay 0, which leads at the start, is on the host of the trainer's first rank where that host holds replicas;
- optional replicas never keep a job from starting;
- workers of an environment that needs a sandbox are on hosts that have one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from engine.policy.rooms import HostView, Need, Rooms, emptied
from engine.spec.control import CPUS_OF_A_DEVICE
from engine.spec.environments.sandbox import needs_sandbox
from engine.spec.job import JobSpec

# A slot on a CPU pool. The whole demo takes half a core in Ray's accounting.
TRAINER_CPUS: Final = CPUS_OF_A_DEVICE
ROLLOUT_CPUS: Final = CPUS_OF_A_DEVICE
SERVICE_CPUS: Final = 0.05
SERVICE: Final = Need(cpus=SERVICE_CPUS)
# Data and the first worker of the environment.
NUM_SERVICES: Final = 2
# More hosts than this make an error message unreadable.
MOST_NAMED: Final = 16


class NoRoom(Exception):
    """The job does not fit on the hosts as they are."""


class NoSandbox(Exception):
    """No host can sandbox the code that the job's environment runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeeds:
    num_ranks: int
    rank: Need
    replica: Need
    fewest_replicas: int
    """Replicas without which the job does not start."""
    num_environments: int = 1
    """Workers. The first shares data's host, the others go round-robin over the hosts of replicas."""
    relay: Need = SERVICE
    service: Need = SERVICE
    in_sandbox: bool = False  # environment workers run untrusted code
    even_ranks: bool = False  # as many ranks on each of the trainer's hosts

    @classmethod
    def of_spec(cls, spec: JobSpec, *, has_gpus: bool) -> Self:
        """On CPUs every process takes a fraction of a core: small jobs share a machine, and the quota bounds them."""
        num_ranks, each = max(spec.trainer_devices, 1), spec.resources.devices_per_replica
        rank = _make_need(spec.trainer_devices // num_ranks, TRAINER_CPUS, has_gpus=has_gpus)
        return cls(
            num_ranks=num_ranks,
            rank=SERVICE if spec.only_evaluates else rank,  # its weights are in host memory
            replica=_make_need(each, ROLLOUT_CPUS, has_gpus=has_gpus),
            fewest_replicas=spec.placement.min_replicas or spec.rollout.replicas,
            num_environments=spec.environment.workers,
            in_sandbox=needs_sandbox(spec.environment.name, spec.environment.params),
            even_ranks=spec.trainer.shard_within == "node" and not spec.only_evaluates,
        )

    def of(self, kind: str) -> Need:
        """Resources of one process of a part of this kind."""
        return {"trainer": self.rank, "rollout": self.replica, "relay": self.relay}.get(kind, self.service)

    def __str__(self) -> str:
        evenly = " (as many on every host)" if self.even_ranks else ""
        return (
            f"{self.num_ranks} trainer ranks with {self.rank} each{evenly}, {self.fewest_replicas} replicas with "
            f"{self.replica} each (whole on one host), one relay on each of their hosts with {self.relay}, data and "
            f"{self.num_environments} environment workers with {self.service} each"
        )


def _make_need(devices: int, cpus: float, *, has_gpus: bool) -> Need:
    return Need(cpus=cpus, gpus=float(devices)) if has_gpus else Need(cpus=cpus * devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Ids of hosts."""

    ranks: tuple[str, ...]
    replicas: tuple[str, ...]
    """By replica; replicas beyond the end have no place yet."""
    relays: tuple[str, ...]
    """By relay, one a host."""
    services: str
    """Host of data and of the environment's first worker."""
    environments: tuple[str, ...] = ()
    """Hosts of the environment's other workers."""

    def relay_of(self, replica: int) -> int:
        return self.relays.index(self.replicas[replica])


def plan_places(hosts: Sequence[HostView], needs: JobNeeds, *, num_replicas: int) -> Places:
    """`num_replicas`: at the start, where there is room for more than the fewest. Raises `NoRoom`, `NoSandbox`."""
    able = [host for host in hosts if host.has_sandbox or not needs.in_sandbox]
    if any(host.cpus for host in hosts) and not any(host.cpus for host in able):
        names = ", ".join(host.name for host in hosts[:MOST_NAMED])
        raise NoSandbox(f"the environment needs a sandbox, and no host can start one: {names}")
    confining = [host.id for host in able]
    rooms = Rooms(hosts)
    fewest = min(needs.fewest_replicas, num_replicas)
    ranks = place_ranks(rooms, needs, count=needs.num_ranks, per_host=_ranks_per_host(hosts, needs))
    replicas = place_replicas(rooms, needs, fewest, relays=()) if ranks else []
    if len(replicas) < fewest:
        raise NoRoom(_explain_refusal(hosts, needs, num_replicas=num_replicas))
    services = rooms.most_cpus(confining)
    if rooms.num_fitting(services, needs.service) < NUM_SERVICES:
        raise NoRoom(_explain_refusal(hosts, needs, num_replicas=num_replicas))
    rooms.take(services, needs.service, NUM_SERVICES)
    near = [host for host in dict.fromkeys(replicas) if host in confining]
    environments = _place_environments(rooms, needs, near=near or confining, among=confining)
    if len(environments) < needs.num_environments - 1:
        raise NoRoom(_explain_refusal(hosts, needs, num_replicas=num_replicas))
    replicas += place_replicas(rooms, needs, num_replicas - fewest, relays=replicas)
    relays = sorted(dict.fromkeys(replicas), key=lambda host: host != ranks[0])
    return Places(
        ranks=tuple(ranks),
        replicas=tuple(replicas),
        relays=tuple(relays),
        services=services,
        environments=tuple(environments),
    )


def _place_environments(rooms: Rooms, needs: JobNeeds, *, near: Sequence[str], among: Sequence[str]) -> list[str]:
    """Places workers round-robin, on the host with most free CPUs once theirs is full; stops when none has room."""
    placed: list[str] = []
    for worker in range(needs.num_environments - 1):
        host = near[worker % len(near)]
        if not rooms.num_fitting(host, needs.service):
            host = rooms.most_cpus(among)
        if not rooms.num_fitting(host, needs.service):
            break
        rooms.take(host, needs.service)
        placed.append(host)
    return placed


def place_ranks(
    rooms: Rooms, needs: JobNeeds, *, count: int, per_host: int | None = None, but: Collection[str] = ()
) -> list[str]:
    """Among equal hosts, the one that costs the fewest replicas, then the one with the least room. Empty: the ranks do
    not all fit. `per_host`: exactly so many on a host, on none of the hosts `but`; None: as many as fit."""

    def num_fitting(host: str) -> int:
        return rooms.num_fitting(host, needs.rank)

    def take(host: str, taken: int) -> None:
        rooms.take(host, needs.rank, taken)

    def costs(host: str, taken: int) -> tuple[int, int]:
        before = rooms.num_fitting(host, needs.replica, shared=needs.relay)
        take(host, taken)
        after = rooms.num_fitting(host, needs.replica, shared=needs.relay)
        take(host, -taken)
        return before - after, num_fitting(host)

    if per_host is None:
        return _fill_fewest_hosts(count, rooms.ids, num_fitting, costs, take)
    enough = [host for host in rooms.ids if host not in but and num_fitting(host) >= per_host]
    chosen = sorted(enough, key=lambda host: costs(host, per_host))[: count // per_host]
    if len(chosen) * per_host < count:
        return []
    for host in chosen:
        take(host, per_host)
    return [host for host in chosen for _ in range(per_host)]


def _ranks_per_host(hosts: Sequence[HostView], needs: JobNeeds) -> int | None:
    """The most that hosts would hold alike if they were empty: with fewer of them a host's share of the model would be
    larger. None: any numbers."""
    if not needs.even_ranks:
        return None
    rooms = Rooms(emptied(hosts))
    fitting, count = [rooms.num_fitting(host, needs.rank) for host in rooms.ids], needs.num_ranks
    alike = (each for each in range(count, 0, -1) if count % each == 0)
    return next((each for each in alike if sum(room >= each for room in fitting) * each >= count), 1)


def place_replicas(rooms: Rooms, needs: JobNeeds, count: int, *, relays: Iterable[str]) -> list[str]:
    """Places as many replicas as fit. `relays`: hosts that have a relay; these are filled first."""
    have_relay = set(relays)
    placed: list[str] = []

    def num_fitting(host: str) -> int:
        return rooms.num_fitting(host, needs.replica, shared=None if host in have_relay else needs.relay)

    def take(host: str, taken: int) -> None:
        rooms.take(host, needs.replica, taken)
        if host not in have_relay:
            have_relay.add(host)
            rooms.take(host, needs.relay)

    beginning = [host for host in rooms.ids if host in have_relay]
    for candidates in (beginning, rooms.ids):
        wanted = min(count - len(placed), sum(map(num_fitting, candidates)))
        placed += _fill_fewest_hosts(wanted, candidates, num_fitting, lambda host, _: (0, num_fitting(host)), take)
    return placed


def _fill_fewest_hosts(
    count: int,
    hosts: Sequence[str],
    num_fitting: Callable[[str], int],
    costs: Callable[[str, int], tuple[int, int]],
    take: Callable[[str, int], None],
) -> list[str]:
    """Fills the largest hosts until the rest fits on one, which is chosen by cost. Empty: they do not all fit, and
    nothing was taken."""
    if sum(map(num_fitting, hosts)) < count:
        return []
    placed: list[str] = []
    while left := count - len(placed):
        enough = [host for host in hosts if num_fitting(host) >= left]
        if enough:
            host = min(enough, key=lambda host: costs(host, left))
            taken = left
        else:
            host = max(hosts, key=num_fitting)
            taken = num_fitting(host)
        take(host, taken)
        placed += [host] * taken
    return placed


def _explain_refusal(hosts: Sequence[HostView], needs: JobNeeds, *, num_replicas: int) -> str:
    fits = "fit" if _fits(hosts, needs, num_replicas) else "not fit even"
    has = "; ".join(_describe_hosts(hosts)) or "there is no host"
    return f"no room for {needs}: {has}. The job would {fits} if all of them were free."


def _fits(hosts: Sequence[HostView], needs: JobNeeds, num_replicas: int) -> bool:
    empty = emptied(hosts)
    if empty == list(hosts):
        return False
    try:
        plan_places(empty, needs, num_replicas=num_replicas)
    except NoRoom:
        return False
    return True


def _describe_hosts(hosts: Sequence[HostView]) -> Iterator[str]:
    yield from map(str, hosts[:MOST_NAMED])
    if len(hosts) > MOST_NAMED:
        yield f"and {len(hosts) - MOST_NAMED} more hosts"
