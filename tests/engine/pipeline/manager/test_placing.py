"""Hosts come and go in a running job: parts of a lost host move to where there is room, with a relay, or wait."""

from dataclasses import replace

from engine.pipeline.effects import Effect, EndPart, Send, StartPart
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.manager.placing import Placing, first_places
from engine.pipeline.messages.addresses import DATA, TRAINER, Address, relay_address, rollout_address
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_manager import HostsObserved, PartLost, PartReported, ReplicaLeft, ResizeOrdered
from engine.pipeline.messages.to_relay import RelaysPlaced
from engine.policy.placement import JobNeeds, Places, plan_places
from engine.policy.rooms import HostView, Need

GPUS = 8.0


class Cluster:
    """Hosts, a manager, and the parts that it started on them."""

    def __init__(
        self, hosts: int, *, ranks: int, replicas: int, fewest: int | None = None, even_ranks: bool = False
    ) -> None:
        one = Need(cpus=0.1, gpus=1.0)
        self.needs = JobNeeds(
            num_ranks=ranks, rank=one, replica=one, fewest_replicas=fewest or replicas, even_ranks=even_ranks
        )
        self.hosts = {f"h{number}": host(f"h{number}") for number in range(hosts)}
        self.places: Places = plan_places(tuple(self.hosts.values()), self.needs, num_replicas=replicas)
        self.at = first_places(self.places)
        self.incarnations = dict.fromkeys(self.at, 0)
        self.relay_of = {
            rollout_address(replica): self.places.relay_of(replica) for replica in range(len(self.places.replicas))
        }
        self.reserved = {part: at for part, at in self.at.items() if part.kind != "rollout" or fewest is None}
        self.manager = ManagerBrain(
            now=0.0,
            incarnations=self.incarnations,
            waiting=[rollout_address(number) for number in range(len(self.places.replicas), replicas)],
            placing=Placing(self.needs, self.places, tuple(self.hosts.values())),
        )
        self.now = 0.0
        self.placed: RelaysPlaced | None = None
        self.faults: list[str] = []
        self.tick()

    def tick(self) -> None:
        self.now += 1.0
        for part, incarnation in self.incarnations.items():
            if part in self.at:
                self.receive(PartReported(part=part, incarnation=incarnation))
        self.receive(HostsObserved(hosts=self.seen()))
        self.receive(Tick())

    def receive(self, message: object) -> None:
        for effect in self.manager.handle(message, self.now):  # type: ignore[arg-type]
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        match effect:
            case EndPart():
                self.at.pop(effect.part, None)
            case StartPart():
                assert effect.part not in self.at and effect.incarnation > self.incarnations.get(effect.part, -1)
                assert effect.hosts and set(effect.hosts) <= set(self.hosts), "on a host that is there"
                self.at[effect.part], self.incarnations[effect.part] = effect.hosts, effect.incarnation
                if effect.part.kind == "rollout":
                    assert effect.relay is not None
                    assert self.at[relay_address(effect.relay)] == effect.hosts, "its relay is on its host"
                    self.relay_of[effect.part] = effect.relay
            case Send(message=RelaysPlaced() as placed):
                self.placed = placed
            case _:
                pass

    def seen(self) -> tuple[HostView, ...]:
        """As Ray reports it: reserved resources are not free, used or not."""
        used = dict.fromkeys(self.hosts, 0.0)
        for part in {*self.at, *self.reserved}:
            if part.kind in ("trainer", "rollout"):
                at, kept = self.at.get(part, ()), self.reserved.get(part, ())
                for on in [*kept, *(each for each in at if each not in kept)]:
                    if on in used:
                        used[on] += 1
        assert all(count <= GPUS for count in used.values()), f"more than there is: {used}"
        return tuple(replace(each, free_gpus=GPUS - used[each.id]) for each in self.hosts.values())

    def lose(self, name: str) -> None:
        del self.hosts[name]
        self.receive(HostsObserved(hosts=self.seen()))  # the body reports the hosts before the losses
        for part in [part for part, at in self.at.items() if name in at]:
            self.receive(PartLost(part=part, incarnation=self.incarnations[part], reason="its process is gone"))
        self.tick()

    def come(self, name: str) -> None:
        self.hosts[name] = host(name)
        self.tick()

    def num_on(self, name: str, kind: str) -> int:
        return sum(at == (name,) and part.kind == kind for part, at in self.at.items())

    @property
    def replicas(self) -> list[Address]:
        return [part for part in self.at if part.kind == "rollout"]


def host(name: str) -> HostView:
    return HostView(id=name, name=name, cpus=16.0, gpus=GPUS, free_cpus=16.0, free_gpus=GPUS)


def test_on_a_full_cluster_parts_of_a_lost_host_wait() -> None:
    cluster = Cluster(8, ranks=16, replicas=48)
    lost = cluster.places.relays[-1]
    before = dict(cluster.at)
    cluster.lose(lost)
    assert len(cluster.replicas) == 40 and cluster.at == {part: at for part, at in before.items() if lost not in at}
    assert cluster.placed == RelaysPlaced(relays=(0, 1, 2, 3, 4))
    cluster.come("new")
    assert len(cluster.replicas) == 48 and cluster.num_on("new", "rollout") == 8
    assert cluster.num_on("new", "relay") == 1 and cluster.placed == RelaysPlaced(relays=(0, 1, 2, 3, 4, 5))


def test_even_ranks_of_a_lost_host_wait_for_a_whole_one() -> None:
    """In single places the ranks would be fewer on each host, and their shares of the model larger."""
    cluster = Cluster(4, ranks=16, replicas=12, even_ranks=True)
    kept, lost = cluster.places.ranks[0], cluster.places.ranks[-1]
    cluster.lose(lost)
    assert TRAINER not in cluster.at, "four devices are free, on a host of replicas"
    cluster.come("new")
    assert sorted(cluster.at[TRAINER]) == sorted([kept] * 8 + ["new"] * 8)


def test_parts_of_a_lost_host_move_to_a_spare_host_at_once() -> None:
    cluster = Cluster(8, ranks=8, replicas=40)
    spare = set(cluster.hosts).difference(cluster.places.ranks, cluster.places.replicas)
    lost = cluster.places.relays[0]
    cluster.lose(lost)
    assert len(cluster.replicas) == 40
    assert sorted(cluster.num_on(name, "rollout") for name in spare) == [0, 8]
    assert all(cluster.num_on(name, "relay") == (cluster.num_on(name, "rollout") > 0) for name in cluster.hosts)


def test_replicas_of_a_lost_host_fill_gaps_on_several_hosts() -> None:
    cluster = Cluster(3, ranks=6, replicas=12)  # 6 and 2, 8, 2: gaps of 6 on the last
    lost = max(cluster.hosts, key=lambda name: cluster.num_on(name, "rollout"))
    cluster.lose(lost)
    assert len(cluster.replicas) == 10, "what has no room waits"
    assert cluster.placed is not None
    assert {cluster.at[relay_address(relay)] for relay in cluster.placed.relays} == {
        cluster.at[part] for part in cluster.replicas
    }


def test_a_part_begins_again_on_its_own_host_while_that_is_there() -> None:
    cluster = Cluster(4, ranks=8, replicas=16)
    for part in (rollout_address(3), relay_address(1), TRAINER, DATA):
        before = cluster.at[part]
        cluster.receive(PartLost(part=part, incarnation=0, reason="killed"))
        assert cluster.at[part] == before and cluster.incarnations[part] == 1


def test_trainer_that_lost_a_host_keeps_other_ranks_and_waits() -> None:
    cluster = Cluster(4, ranks=16, replicas=16)
    first, second = sorted(set(cluster.places.ranks))
    cluster.lose(second)
    assert TRAINER not in cluster.at and len(cluster.replicas) == 16
    cluster.come("new")
    assert sorted(cluster.at[TRAINER]) == sorted([first] * 8 + ["new"] * 8)
    assert DATA in cluster.at


def test_replicas_without_room_start_when_a_host_arrives() -> None:
    cluster = Cluster(1, ranks=2, replicas=10, fewest=3)
    assert len(cluster.replicas) == 6 and cluster.placed == RelaysPlaced(relays=(0,))
    cluster.come("late")
    assert len(cluster.replicas) == 10 and cluster.num_on("late", "rollout") == 4
    assert cluster.placed == RelaysPlaced(relays=(0, 1)) and cluster.incarnations[relay_address(1)] > 0
    late = [part for part, at in cluster.at.items() if at == ("late",) and part.kind == "rollout"]
    assert {cluster.relay_of[part] for part in late} == {1}


def test_elastic_replica_that_left_returns_to_any_free_host() -> None:
    cluster = Cluster(2, ranks=2, replicas=12, fewest=2)
    cluster.receive(ResizeOrdered(replicas=8, within_s=5.0))
    for number in range(8, 12):
        cluster.receive(ReplicaLeft(replica=number, incarnation=0))
    cluster.lose(next(name for name in cluster.places.relays if name not in cluster.places.ranks))
    cluster.come("other")
    cluster.receive(ResizeOrdered(replicas=12, within_s=5.0))
    cluster.tick()
    assert len(cluster.replicas) == 12


def test_list_of_relays_is_repeated() -> None:
    cluster = Cluster(2, ranks=8, replicas=8)
    cluster.placed = None
    for _ in range(6):
        cluster.tick()
    assert cluster.placed == RelaysPlaced(relays=(0,))
