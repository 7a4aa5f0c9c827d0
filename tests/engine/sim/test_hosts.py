"""A job on 64 devices of 8 hosts: it is placed, loses hosts and gets new ones, without losing samples."""

from typing import Any

import pytest

from engine.pipeline.plan import Plan
from engine.policy.placement import JobNeeds
from engine.policy.rooms import HostView, Need
from engine.policy.schedule import PRESETS
from engine.sim.faults import Blow, Faults
from engine.sim.hosts import Hosts
from engine.sim.world import World
from engine.spec.schedules import ScheduleName

DEVICES, STEPS = 8.0, 4


def cluster(num_hosts: int) -> list[HostView]:
    return [
        HostView(id=f"h{at}", name=f"h{at}", cpus=32.0, gpus=DEVICES, free_cpus=32.0, free_gpus=DEVICES)
        for at in range(num_hosts)
    ]


def world(
    *blows: Blow,
    num_hosts: int = 8,
    ranks: int = 16,
    replicas: int = 48,
    fewest: int | None = None,
    schedule: ScheduleName = "laminar",
    seed: int = 1,
) -> World:
    one = Need(cpus=0.1, gpus=1.0)
    needs = JobNeeds(num_ranks=ranks, rank=one, replica=one, fewest_replicas=fewest or replicas)
    hosts = Hosts(needs=needs, cluster=cluster(num_hosts), num_replicas=replicas)
    plan = Plan(
        schedule=PRESETS[schedule],
        weight_slots=2 if PRESETS[schedule].in_flight == "pin" else 1,
        steps=STEPS,
        groups_per_step=16,
        group_size=8,
        checkpoint_every=1,
        evaluation_prompts=8,
        evaluate_every=0,
        max_batch=4,
        num_relays=len(hosts.places.relays),
    )
    return World(seed=seed, plan=plan, num_replicas=replicas, hosts=hosts, faults=Faults(blows=blows, quiet_at=60.0))


def num_replicas(run: World) -> int:
    assert run.hosts is not None
    return sum(part.kind == "rollout" for part in run.hosts.at)


def relays_are_where_replicas_are(run: World) -> bool:
    assert run.hosts is not None
    at = run.hosts.at
    return {on for part, on in at.items() if part.kind == "rollout"} <= {
        on for part, on in at.items() if part.kind == "relay"
    }


@pytest.mark.parametrize("schedule", ["laminar", "sync"])
def test_full_cluster_continues_after_losing_a_host(schedule: ScheduleName) -> None:
    run = world(Blow(at=1.5, part="relay", which=2, kind="host goes"), schedule=schedule)
    assert run.run().end == "succeeded"
    assert num_replicas(run) == 40 and relays_are_where_replicas_are(run)


def test_the_host_of_the_relay_that_leads_goes_and_another_comes() -> None:
    run = world(
        Blow(at=1.5, part="relay", which=0, kind="host goes"), Blow(at=3.0, part="relay", which=0, kind="host comes")
    )
    outcome = run.run()
    assert outcome.end == "succeeded" and num_replicas(run) == 48 and relays_are_where_replicas_are(run)
    assert sum("host" in fault.message or "no heartbeat" in fault.message for fault in outcome.oracle.faults) >= 9


def test_replicas_that_wait_for_a_host_join_a_running_job() -> None:
    run = world(Blow(at=1.0, part="relay", which=0, kind="host comes"), num_hosts=3, replicas=16, fewest=4)
    before = num_replicas(run)
    assert before == 8 and run.run().end == "succeeded"
    assert num_replicas(run) == 16 and relays_are_where_replicas_are(run)


def test_a_host_of_the_trainer_goes_and_another_comes() -> None:
    sizes: dict[str, Any] = {"num_hosts": 3, "ranks": 6, "replicas": 18}
    run = world(**sizes)
    assert run.hosts is not None
    shared = run.hosts.places.relays.index(run.hosts.places.ranks[0])
    blows = [Blow(at=1.5, part="relay", which=shared, kind="host goes")]
    blows.append(Blow(at=4.0, part="relay", which=0, kind="host comes"))
    run = world(*blows, **sizes)
    outcome = run.run()
    assert outcome.end == "succeeded" and num_replicas(run) == 18
    assert any("trainer" in fault.component for fault in outcome.oracle.faults)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_hosts_that_come_and_go_at_any_time(seed: int) -> None:
    at = [1.0 + 0.31 * seed, 2.0 + 0.17 * seed, 4.0 + 0.11 * seed]
    run = world(
        Blow(at=at[0], part="relay", which=seed % 6, kind="host goes"),
        Blow(at=at[1], part="relay", which=0, kind="host comes"),
        Blow(at=at[2], part="rollout", which=seed, kind="crash"),
        seed=seed,
    )
    assert run.run().end == "succeeded" and relays_are_where_replicas_are(run)
