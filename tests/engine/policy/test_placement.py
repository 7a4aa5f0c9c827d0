"""Placement: no host over capacity, every replica whole on one host, a relay on each host of replicas."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.policy.placement import NUM_SERVICES, JobNeeds, NoRoom, NoSandbox, Places, place_replicas, plan_places
from engine.policy.rooms import PRECISION, HostView, Need, Rooms
from engine.spec.job import JobSpec


def host(number: int, gpus: float, cpus: float = 16.0, *, used: float = 0.0) -> HostView:
    return HostView(
        id=f"id{number}", name=f"host-{number}", cpus=cpus, gpus=gpus, free_cpus=cpus, free_gpus=gpus - used
    )


def needs(num_ranks: int, replicas: int, *, each: float = 1.0, workers: int = 1) -> JobNeeds:
    rank, replica = Need(cpus=0.1, gpus=1.0), Need(cpus=0.1, gpus=each)
    return JobNeeds(num_ranks=num_ranks, rank=rank, replica=replica, fewest_replicas=replicas, num_environments=workers)


def used_of(places: Places, demand: JobNeeds, host: str) -> tuple[float, float]:
    """CPUs and GPUs."""
    parts = [demand.rank] * places.ranks.count(host) + [demand.replica] * places.replicas.count(host)
    parts += [demand.relay] * places.relays.count(host)
    parts += [demand.service] * (places.environments.count(host) + NUM_SERVICES * (places.services == host))
    return round(sum(part.cpus for part in parts), PRECISION), sum(part.gpus for part in parts)


def fewest_hosts(hosts: list[HostView], count: int, each: Need) -> int:
    """Fills the largest hosts first: no other way needs fewer where each process may go anywhere."""
    for num, room in enumerate(sorted((Rooms([host]).num_fitting(host.id, each) for host in hosts), reverse=True), 1):
        count -= room
        if count <= 0:
            return num
    raise AssertionError("they do not fit")


@given(
    gpus=st.lists(st.sampled_from((0, 1, 2, 4, 6, 8)), min_size=1, max_size=9),
    num_ranks=st.integers(1, 20),
    fewest=st.integers(1, 20),
    more=st.integers(0, 40),
    each=st.sampled_from((1.0, 2.0, 4.0)),
    cpus=st.sampled_from((0.3, 1.0, 16.0)),
    workers=st.integers(1, 9),
)
def test_placement_fits_hosts_and_gives_replicas_a_local_relay(
    gpus: list[int], num_ranks: int, fewest: int, more: int, each: float, cpus: float, workers: int
) -> None:
    hosts = [host(number, float(count), cpus) for number, count in enumerate(gpus)]
    demand = needs(num_ranks, fewest, each=each, workers=workers)
    try:
        places = plan_places(hosts, demand, num_replicas=fewest + more)
    except NoRoom as refusal:
        assert all(each.name in str(refusal) for each in hosts)
        assert sum(gpus) < num_ranks + fewest * each or each > 1 or cpus < 16, "there was room"
        return
    for each_host in hosts:
        used_cpus, used_gpus = used_of(places, demand, each_host.id)
        assert used_cpus <= each_host.cpus and used_gpus <= each_host.gpus
    assert len(places.ranks) == num_ranks and fewest <= len(places.replicas) <= fewest + more
    assert set(places.relays) == set(places.replicas) and len(set(places.relays)) == len(places.relays)
    assert all(places.relays[places.relay_of(at)] == on for at, on in enumerate(places.replicas))
    assert len(places.environments) == workers - 1
    assert len(set(places.ranks)) == fewest_hosts(hosts, num_ranks, demand.rank)
    if places.ranks[0] in places.relays:
        assert places.relays[0] == places.ranks[0], "the relay that leads shares the trainer's host"


def test_trainer_fills_two_of_eight_hosts_and_replicas_fill_six() -> None:
    places = plan_places([host(number, 8.0) for number in range(8)], needs(16, 48), num_replicas=48)
    assert sorted(Counter(places.ranks).values()) == [8, 8]
    assert sorted(Counter(places.replicas).values()) == [8] * 6 and len(places.relays) == 6
    assert not set(places.ranks) & set(places.replicas)


def test_trainer_leaves_large_hosts_to_replicas_that_need_them() -> None:
    uneven = [host(0, 8.0), host(1, 2.0), host(2, 4.0)]
    places = plan_places(uneven, needs(2, 3, each=4.0), num_replicas=3)
    assert set(places.ranks) == {"id1"} and Counter(places.replicas) == {"id0": 2, "id2": 1}


@given(
    gpus=st.lists(st.tuples(st.sampled_from((2, 4, 8)), st.sampled_from((0, 1, 2))), min_size=1, max_size=6),
    num_ranks=st.integers(1, 20),
)
def test_even_ranks_are_as_many_a_host_as_empty_hosts_hold(gpus: list[tuple[int, int]], num_ranks: int) -> None:
    hosts = [host(number, float(count), used=float(used)) for number, (count, used) in enumerate(gpus)]
    demand = replace(needs(num_ranks, 1, each=0.0), even_ranks=True)
    try:
        places = plan_places(hosts, demand, num_replicas=1)
    except NoRoom:
        return
    [each] = set(Counter(places.ranks).values())
    empty = plan_places([host(number, float(count)) for number, (count, _) in enumerate(gpus)], demand, num_replicas=1)
    assert set(Counter(empty.ranks).values()) == {each}
    assert all(places.ranks.count(name) == each for name in places.ranks[::each]), "ranks of a host follow each other"


def test_even_ranks_wait_for_whole_hosts_rather_than_spread() -> None:
    demand = replace(needs(8, 1, each=0.0), even_ranks=True)
    half_used = [host(number, 8.0, used=4.0) for number in range(4)]
    with pytest.raises(NoRoom, match=r"8 trainer ranks .*\(as many on every host\).* would fit if all"):
        plan_places(half_used, demand, num_replicas=1)
    places = plan_places([*half_used, host(4, 8.0)], demand, num_replicas=1)
    assert places.ranks == ("id4",) * 8


def test_job_that_shards_within_hosts_asks_for_even_ranks() -> None:
    document = {"name": "x", "resources": {"trainer_devices": 4}, "trainer": {"shard_within": "node"}}
    assert JobNeeds.of_spec(JobSpec.model_validate(document), has_gpus=True).even_ranks
    evaluation = JobSpec.model_validate(document | {"training": {"steps": 0}})
    assert not JobNeeds.of_spec(evaluation, has_gpus=True).even_ranks


def test_on_one_host_there_is_one_relay() -> None:
    without = JobNeeds.of_spec(JobSpec(name="x"), has_gpus=False)
    places = plan_places([host(0, 0.0, cpus=2.0)], without, num_replicas=2)
    assert places == Places(ranks=("id0",), replicas=("id0", "id0"), relays=("id0",), services="id0")


def test_optional_replicas_wait_and_fill_hosts_with_relays_first() -> None:
    demand, first = needs(1, 2), [host(0, 4.0)]
    places = plan_places(first, demand, num_replicas=9)
    assert places.replicas == ("id0",) * 3, "the others have no place yet"
    rooms = Rooms([host(0, 4.0, used=2.0), host(1, 8.0)])
    assert place_replicas(rooms, demand, 6, relays=["id0"]) == ["id0"] * 2 + ["id1"] * 4


def test_refusal_lists_hosts_and_whether_an_empty_cluster_fits() -> None:
    hosts = [host(number, 8.0) for number in range(2)]
    with pytest.raises(
        NoRoom, match=r"3 replicas with 8 GPU and .* host-1 has 8 of 8 GPUs.* not fit even if .*free\.$"
    ):
        plan_places(hosts, needs(1, 3, each=8.0), num_replicas=3)
    busy = [host(0, 8.0, used=6.0)]
    with pytest.raises(NoRoom, match=r"2 of 8 GPUs .* free.* The job would fit if all of them were free\.$"):
        plan_places(busy, needs(1, 4), num_replicas=4)
    with pytest.raises(NoRoom, match="there is no host"):
        plan_places([], needs(1, 1), num_replicas=1)


def test_a_refusal_of_a_thousand_hosts_can_be_read() -> None:
    with pytest.raises(NoRoom) as refusal:
        plan_places([host(number, 0.0) for number in range(1_000)], needs(1, 1), num_replicas=1)
    assert len(str(refusal.value)) < 2_000 and "and 984 more hosts" in str(refusal.value)


def test_an_evaluation_holds_no_device_for_a_trainer() -> None:
    spec = JobSpec.model_validate({"name": "x", "training": {"steps": 0}, "resources": {"trainer_devices": 4}})
    demand = JobNeeds.of_spec(spec, has_gpus=True)
    assert demand.num_ranks == 1 and demand.rank == demand.service and demand.replica.gpus == 1


SPEC = JobSpec.model_validate({"name": "x", "environment": {"name": "reasoning_gym", "workers": 5}})


def test_untrusted_workers_are_placed_on_hosts_with_a_sandbox() -> None:
    hosts = [host(0, 8.0, cpus=64.0), host(1, 8.0, cpus=4.0), host(2, 1.0, cpus=64.0)]
    without = [replace(each, has_sandbox=each.id == "id1") for each in hosts]
    demand = JobNeeds.of_spec(SPEC, has_gpus=True)
    places = plan_places(without, demand, num_replicas=2)
    assert {places.services, *places.environments} == {"id1"} and len(places.environments) == 4
    elsewhere = plan_places(hosts, demand, num_replicas=2)
    assert "id1" not in {elsewhere.services, *elsewhere.environments}


def test_job_is_refused_without_sandbox_only_if_it_needs_one() -> None:
    hosts = [replace(host(number, 8.0), has_sandbox=False) for number in range(2)]
    with pytest.raises(NoSandbox, match=r"sandbox.*host-0, host-1"):
        plan_places(hosts, JobNeeds.of_spec(SPEC, has_gpus=True), num_replicas=2)
    assert plan_places(hosts, JobNeeds.of_spec(JobSpec(name="x"), has_gpus=True), num_replicas=2).replicas
    with pytest.raises(NoRoom):
        plan_places([], JobNeeds.of_spec(SPEC, has_gpus=True), num_replicas=2)
