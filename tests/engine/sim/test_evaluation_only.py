"""A job that trains nothing: its initial weights answer the held-out prompts once."""

from dataclasses import replace

import pytest

from engine.policy.lineage import WeightsId
from engine.sim.faults import Faults
from engine.sim.scenario import SCHEDULES, evaluation_of, replay_command
from engine.sim.world import World
from engine.spec.schedules import ScheduleName

STEP = 50


def calm(schedule: ScheduleName, **changes: int) -> World:
    return World(
        seed=1,
        plan=replace(evaluation_of(1, schedule).plan, **changes),  # type: ignore[arg-type]
        num_replicas=3,
        faults=Faults(),
        start_step=STEP,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_checkpoint_weights_answer_every_held_out_prompt_once(schedule: ScheduleName) -> None:
    oracle = calm(schedule, evaluation_prompts=23).run().oracle
    [report] = oracle.evaluated
    assert (report.weights.version, report.num_prompts) == (STEP, 23)
    assert oracle.counted[-1].num_answered == 23
    assert oracle.published == {WeightsId(0, STEP)} and oracle.faults == []


@pytest.mark.long_except("range(0, 20)-one_step")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(1_000, 1_200), marks=pytest.mark.soak)], ids=str)
def test_no_fault_order_breaks_an_evaluation(schedule: ScheduleName, seeds: range) -> None:
    for seed in seeds:
        world = evaluation_of(seed, schedule)
        try:
            oracle = world.run().oracle
        except Exception as error:  # noqa: BLE001 - any failure must name its seed
            pytest.fail(f"{type(error).__name__}: {error}\n{replay_command(seed, schedule, evaluates=True)}")
        prompts = world.plan.evaluation_prompts
        assert all(
            report.num_prompts <= prompts and report.weights.version == world.start_step for report in oracle.evaluated
        )
