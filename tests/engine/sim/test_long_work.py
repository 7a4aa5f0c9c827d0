"""Work many times longer than the silence limit causes no restart; a part that hangs during it is replaced."""

from typing import Literal

import pytest

from engine.pipeline.messages.to_driver import FaultReported
from engine.pipeline.plan import Plan
from engine.policy.schedule import PRESETS
from engine.sim.cluster import NEWS_S, NOTICED_LATE_S, PATIENCE
from engine.sim.fault_costs import Costs
from engine.sim.faults import Blow, Faults
from engine.sim.scenario import SCHEDULES
from engine.sim.world import Outcome, World
from engine.spec.schedules import ScheduleName

STEP_S = 1_200.0
LOAD_S = 2_400.0
SIGN_EVERY_S = 60.0
STILL_S = 120.0
"""A run without open samples and progress for this long is ended: a tenth of a step."""
STEPS = 3


def world(
    seed: int,
    *,
    schedule: ScheduleName = "laminar",
    costs: Costs,
    blows: tuple[Blow, ...] = (),
    no_progress_s: float = STILL_S,
) -> World:
    plan = Plan(
        schedule=PRESETS[schedule],
        weight_slots=2 if PRESETS[schedule].in_flight == "pin" else 1,
        steps=STEPS,
        groups_per_step=2,
        group_size=3,
        checkpoint_every=1,
        evaluation_prompts=2,
        evaluate_every=0,
        max_batch=8,
        sample_deadline_s=10 * STEP_S,
        num_relays=2,
    )
    faults = Faults(blows=blows, quiet_at=100 * STEP_S)
    return World(
        seed=seed,
        plan=plan,
        num_replicas=2,
        faults=faults,
        costs=costs,
        deadline_s=100 * STEP_S,
        no_progress_s=no_progress_s,
    )


def training() -> Costs:
    return Costs(train_s=STEP_S, sign_every_s=SIGN_EVERY_S)


def loading() -> Costs:
    return Costs(load_s=LOAD_S, sign_every_s=SIGN_EVERY_S)


def losses(outcome: Outcome) -> list[FaultReported]:
    return [
        fault for fault in outcome.oracle.faults if "no heartbeat" in fault.message or "no progress" in fault.message
    ]


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["laminar", "sync"])
def test_step_of_twenty_minutes_causes_no_restart_and_no_stall(schedule: ScheduleName) -> None:
    for seed in range(1):
        outcome = world(seed, schedule=schedule, costs=training()).run()
        assert outcome.virtual_s > STEPS * STEP_S * 0.9 and not losses(outcome)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hang", "freeze"])
def test_trainer_that_hangs_in_a_long_step_is_replaced_in_time(kind: Literal["hang", "freeze"]) -> None:
    found_after_s = seconds_until_found(at=2.5 * STEP_S, kind=kind, costs=training())
    assert 0.0 < found_after_s < (PATIENCE.no_progress_s if kind == "hang" else PATIENCE.silent_s) + NEWS_S


@pytest.mark.long
def test_load_of_forty_minutes_that_progresses_is_left_alone() -> None:
    outcome = world(0, costs=loading()).run()
    assert outcome.virtual_s > LOAD_S * 0.9 and not losses(outcome)


@pytest.mark.long
@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_hang_during_a_load_is_detected_in_two_minutes(at: float) -> None:
    assert 0.0 < seconds_until_found(at=at * LOAD_S, kind="hang", costs=loading()) < 120.0 + NEWS_S


def seconds_until_found(*, at: float, kind: Literal["hang", "freeze"], costs: Costs) -> float:
    blow = Blow(at=at, part="trainer", which=0, kind=kind, lasts_s=1e6)
    struck = world(0, costs=costs, blows=(blow,))
    found_at: list[float] = []
    watch(struck, found_at)
    [loss] = losses(struck.run())
    assert loss.component == "trainer"
    return found_at[0] - at


def watch(struck: World, found_at: list[float]) -> None:
    class Noting(list[FaultReported]):
        def append(self, fault: FaultReported) -> None:
            if fault.component == "trainer":
                found_at.append(struck.kernel.now)
            super().append(fault)

    struck.oracle.faults = Noting()


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_long_work_causes_no_restart(schedule: ScheduleName) -> None:
    """Every second piece of work lasts up to twenty times the silence limit."""
    costs = Costs(long_work=0.5, longest_s=20 * PATIENCE.silent_s)
    for seed in range(6):
        outcome = world(seed, schedule=schedule, costs=costs).run()
        assert outcome.virtual_s > 10 * PATIENCE.silent_s and not losses(outcome)


@pytest.mark.parametrize("part", ["rollout", "relay", "data", "trainer"])
def test_every_hanging_part_is_replaced(part: str) -> None:
    for seed in range(6):
        blow = Blow(at=1.0 + 0.7 * seed, part=part, which=seed, kind="hang")  # type: ignore[arg-type]
        struck = world(seed, costs=Costs(train_s=5.0), blows=(blow,))
        outcome = struck.run()
        found = [loss.component for loss in losses(outcome)]
        assert len(found) == 1 and found[0].startswith(part), f"seed {seed}: {found}"
        assert outcome.virtual_s < blow.at + PATIENCE.no_progress_s + NOTICED_LATE_S + 60.0
