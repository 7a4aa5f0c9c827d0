"""The driver under all kinds of faults: for any requests at any time, a run ends exactly once and correctly.

The oracle (engine/sim/oracle/driver.py) keeps its own record of requests, reports and announcements.
"""

from dataclasses import replace

import pytest

from engine.sim.chance import Chance
from engine.sim.cluster import START_S
from engine.sim.faults import LAST_FAULT_S, Blow, Faults
from engine.sim.scenario import SCHEDULES, costs_of, faults_of, num_replicas_of, plan_of, world_of
from engine.sim.world import World
from engine.spec.schedules import ScheduleName

FEW = range(30)
MANY = range(1_000, 1_200)


def asked(seed: int) -> tuple[Blow, ...]:
    """Two sizes and one or two pauses, in random order."""
    chance, whole = Chance(seed, "asked"), num_replicas_of(seed)
    sizes = [
        Blow(at=chance.uniform(0.0, LAST_FAULT_S), part="driver", kind="resize", which=chance.whole(1, whole))
        for _ in range(2)
    ]
    pauses = [
        Blow(at=chance.uniform(0.0, 2 * LAST_FAULT_S), part="driver", kind="pause", which=0)
        for _ in range(chance.whole(1, 2))
    ]
    return (*sizes, *pauses)


def world(seed: int, schedule: ScheduleName) -> World:
    faults = faults_of(seed)
    return world_of(seed, schedule, faults=replace(faults, blows=(*faults.blows, *asked(seed))))


@pytest.mark.long_except("few-inflight")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.soak)], ids=["few", "many"])
def test_run_ends_once_under_any_requests_and_faults(schedule: ScheduleName, seeds: range) -> None:
    ends: list[str] = []
    for seed in seeds:
        try:
            ends.append(world(seed, schedule).run().end)
        except Exception as error:  # noqa: BLE001 - any failure must name its seed
            pytest.fail(f"{type(error).__name__}: {error}; seed {seed}, schedule {schedule}")
    assert ends.count("paused") >= 5 and ends.count("succeeded") >= 5, ends


def calm(seed: int, *blows: Blow) -> World:
    """A run without long work and without faults other than these."""
    return World(
        seed=seed,
        plan=plan_of(seed, "laminar"),
        num_replicas=num_replicas_of(seed),
        costs=replace(costs_of(seed), long_work=0.0, longest_s=0.0),
        faults=Faults(blows=blows),
    )


@pytest.mark.parametrize("seed", range(5))
def test_pause_of_a_calm_run_takes_a_step_and_a_checkpoint(seed: int) -> None:
    at = calm(seed).run().virtual_s / 2
    run = calm(seed, Blow(at=at, part="driver", kind="pause", which=0))
    outcome = run.run()
    assert outcome.end == "paused"
    assert outcome.virtual_s - at < run.costs.train_s + run.costs.save_s + 0.1


@pytest.mark.long
def test_a_pause_in_the_last_evaluation_lets_it_come_to_its_end() -> None:
    """Every sample of the last step is trained: a pause would leave nothing to resume."""
    ended = 0
    for seed in range(10):
        whole = calm(seed).run()
        outcome = calm(seed, Blow(at=whole.virtual_s - 0.2, part="driver", kind="pause", which=0)).run()
        ended += outcome.end == "succeeded"
    assert ended >= 5


def test_run_waits_for_a_dead_environment_and_continues() -> None:
    whole = calm(1).run().virtual_s
    deaths = tuple(Blow(at=whole / 3 + 4.0 * number, part="environment", which=0, kind="crash") for number in range(2))
    outcome = calm(1, *deaths).run()
    assert outcome.end == "succeeded" and outcome.virtual_s > whole + START_S
    assert [fault.component for fault in outcome.oracle.faults] == ["environment"] * len(deaths)
