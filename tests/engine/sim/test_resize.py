"""Replicas leave and return during a run, under all kinds of faults: no sample is lost or doubled.

The oracle (`engine/sim/oracle/pipeline.py`) follows every sample; a run ends only if each step trained whole groups
exactly once.
"""

from dataclasses import replace

import pytest

from engine.sim.chance import Chance
from engine.sim.faults import Blow, Faults
from engine.sim.scenario import SCHEDULES, costs_of, num_replicas_of, world_of
from engine.sim.world import World
from engine.spec.schedules import ScheduleName

FEW = range(10)
MANY = range(1_000, 1_200)


def resizes(seed: int) -> tuple[Blow, ...]:
    """Down to a random size, up to all, and sometimes down again before the others are back."""
    chance, whole = Chance(seed, "resize"), num_replicas_of(seed)
    sizes = [chance.whole(1, whole), whole, chance.whole(1, whole)]
    times = sorted(chance.uniform(0.5, 12.0) for _ in sizes)
    return tuple(Blow(at=at, part="driver", which=size, kind="resize") for at, size in zip(times, sizes, strict=True))


def world(seed: int, schedule: ScheduleName, faults: Faults) -> World:
    return world_of(seed, schedule, faults=replace(faults, blows=(*faults.blows, *resizes(seed))))


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.soak)], ids=["few", "many"])
def test_no_order_of_resizes_and_faults_breaks_an_invariant(schedule: ScheduleName, seeds: range) -> None:
    """Few seeds, since `test_driver` resizes under all faults too."""
    for seed in seeds:
        try:
            world(seed, schedule, Faults.drawn(seed)).run()
        except Exception as error:  # noqa: BLE001 - any failure must name its seed
            pytest.fail(f"{type(error).__name__}: {error}; seed {seed}, schedule {schedule}")


def test_calm_run_reaches_every_size_and_replicas_return() -> None:
    reached = 0
    for seed in (seed for seed in range(40) if num_replicas_of(seed) > 2 and not costs_of(seed).long_work):
        calm = world_of(seed, "laminar", faults=Faults(blows=(resize_at(1.0, 1), resize_at(8.0, 2))))
        outcome = calm.run()
        if outcome.virtual_s > 14:
            assert calm.driven.sizes == [1, 2], f"seed {seed}"
            reached += 1
    assert reached >= 3


@pytest.mark.long
def test_replicas_without_weights_leave_on_request() -> None:
    for seed in (seed for seed in range(10) if num_replicas_of(seed) > 1):
        calm = world_of(seed, "laminar", faults=Faults(blows=(resize_at(0.0, 1),)))
        calm.run()
        assert calm.driven.sizes == [1], f"seed {seed}"


def resize_at(at: float, replicas: int) -> Blow:
    return Blow(at=at, part="driver", which=replicas, kind="resize")
