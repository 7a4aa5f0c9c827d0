"""A plan's deadlines leave the environment the time that the job gives it."""

from dataclasses import replace

import pytest

from engine.pipeline.messages.to_driver import FaultReported
from engine.pipeline.plan import Plan
from engine.spec.job import EnvironmentSpec, EvaluationSpec, JobSpec, TrainingSpec
from tests.engine.pipeline.brain_builders import PLAN, DataWithDisk, granted, of

HOUR_S = 3_600.0


@pytest.mark.parametrize("turn_timeout_s", [60.0, 1.5 * HOUR_S, 24 * HOUR_S])
def test_sample_with_slow_turns_is_not_overdue(
    turn_timeout_s: float,
) -> None:
    of_spec = Plan.from_spec(JobSpec(name="slow", environment=EnvironmentSpec(turn_timeout_s=turn_timeout_s)))
    data = DataWithDisk(replace(PLAN, sample_deadline_s=of_spec.sample_deadline_s)).past_the_evaluation()
    assert granted(data.sync(wants=4))
    for _ in range(3):  # the prompt, a tool, the verdict
        assert of(data.wait(turn_timeout_s), FaultReported) == []
    assert of_spec.given_up_within_s > 2 * of_spec.sample_deadline_s > 6 * turn_timeout_s


def test_dapo_filters_groups_unless_only_a_teacher_is_used() -> None:
    def filters(**algorithm: object) -> bool:
        return Plan.from_spec(JobSpec.model_validate({"name": "x", "algorithm": algorithm})).filters

    assert filters(name="dapo") and filters(name="dapo", teacher={"source": "demo"}) and not filters()
    assert not filters(name="dapo", teacher={"source": "demo", "reward_weight": 0})


def test_plan_asks_as_many_held_out_answers_as_the_spec() -> None:
    plan = Plan.from_spec(JobSpec(name="x", evaluation=EvaluationSpec(samples=4, pass_mark=0.5)))
    assert (plan.evaluation_samples, plan.pass_mark) == (4, 0.5)


def test_evaluation_plan_evaluates_any_start_step() -> None:
    plan = Plan.from_spec(JobSpec(name="e", training=TrainingSpec(steps=0)))
    assert plan.only_evaluates and plan.evaluates(50) and plan.publishes(50)


def test_plan_evaluates_another_jobs_checkpoint_before_its_first_step() -> None:
    spec = JobSpec(name="e", training=TrainingSpec(steps=100))
    assert not Plan.from_spec(spec).evaluates(50)
    assert Plan.from_spec(spec, starts_at=50).evaluates(50)
