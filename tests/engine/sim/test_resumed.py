"""A later attempt evaluates version 0, the base weights, if no earlier attempt did."""

from dataclasses import replace
from itertools import product

import pytest

from engine.pipeline.effects import Effect
from engine.pipeline.messages.to_trainer import TrainerLoaded
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.lineage import BASE_WEIGHTS
from engine.sim.cluster import Brains
from engine.sim.faults import Blow, Faults
from engine.sim.scenario import SCHEDULES, replay_command, resumed_of
from engine.spec.schedules import ScheduleName


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_resumed_job_answers_held_out_prompts_by_base_weights(schedule: ScheduleName) -> None:
    for seed in range(6):
        world = resumed_of(seed, schedule, faults=Faults())
        oracle = world.run().oracle
        [base] = [report for report in oracle.evaluated if report.weights.version == 0]
        assert (base.weights, base.num_prompts) == (BASE_WEIGHTS, world.plan.evaluation_prompts)
        assert not any("was lost" in fault.message for fault in oracle.faults)


def test_resumed_job_that_has_a_result_does_not_repeat_it() -> None:
    world = resumed_of(3, "laminar", faults=Faults(), base_is_due=False)
    oracle = world.run().oracle
    assert BASE_WEIGHTS not in oracle.published
    assert all(report.weights.version for report in oracle.evaluated)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_job_from_another_jobs_checkpoint_evaluates_its_weights(schedule: ScheduleName) -> None:
    for seed in range(6):
        world = resumed_of(seed, schedule, faults=Faults(), is_of_another_job=True)
        assert world.start_step in {report.weights.version for report in world.run().oracle.evaluated}


@pytest.mark.long_except("range(0, 20)-laminar")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(1_000, 1_200), marks=pytest.mark.soak)], ids=str)
def test_no_fault_order_breaks_a_resumed_job(schedule: ScheduleName, seeds: range) -> None:
    for seed, is_of_another_job in product(seeds, (False, True)):
        try:
            resumed_of(seed, schedule, is_of_another_job=is_of_another_job).run()
        except Exception as error:  # noqa: BLE001 - any failure must name its seed
            command = replay_command(seed, schedule, is_resumed=True, is_of_another_job=is_of_another_job)
            pytest.fail(f"{type(error).__name__}: {error}\n{command}")


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 1.0, 2.0, 4.0])
def test_trainer_killed_early_still_leaves_a_true_result(at: float) -> None:
    """Before, while and after its copy of the base weights reaches the relays."""
    for seed in range(4):
        faults = Faults(blows=(Blow(at=at, part="trainer", which=0, kind="crash"),))
        oracle = resumed_of(seed, "laminar", faults=faults).run().oracle
        assert [report.weights for report in oracle.evaluated if report.weights.version == 0] == [BASE_WEIGHTS]
        assert not any("was lost" in fault.message for fault in oracle.faults)


class SilentTrainer(TrainerBrain):
    """Never offers the base weights."""

    def _on_loaded(self, message: TrainerLoaded, now: float) -> list[Effect]:
        return super()._on_loaded(replace(message, holds_base=False), now)


def test_oracle_detects_an_attempt_without_base_weights() -> None:
    world = resumed_of(0, "laminar", faults=Faults(), brains=Brains(trainer=SilentTrainer))
    report = world.run().oracle.evaluated[0]
    assert report.weights.version > 0
