"""Hints: the number of running trajectories compared with the schedule, and the settings that a hint names."""

from typing import Any

import pytest

from engine.pipeline.plan import Plan
from engine.policy.schedule import DemandView
from engine.spec.job import JobSpec
from engine.spec.schedules import SCHEDULES, ScheduleName
from engine.spec.settings.hints import hints_of, most_running


def job(**sections: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "a job"} | sections)


def groups_opened_by_schedule(spec: JobSpec) -> int:
    """The groups that the schedule opens for an idle trainer and a replica per group."""
    plan = Plan.from_spec(spec)

    def demand(num_open: int) -> DemandView:
        return DemandView(
            num_open=num_open, groups_per_step=plan.groups_per_step, steps_left=plan.steps, num_in_progress=num_open
        )

    if plan.schedule.window_steps:
        return plan.schedule.next_window(demand(0))
    num_open = 0
    while plan.schedule.may_start(demand(num_open), lag=0):
        num_open += 1
    return num_open


@pytest.mark.parametrize("steps", [1, 2, 100])
@pytest.mark.parametrize("bound", [None, 0, 1, 2, 20])
@pytest.mark.parametrize("name", SCHEDULES)
def test_most_running_matches_what_the_schedule_opens(name: ScheduleName, bound: int | None, steps: int) -> None:
    leads = [None] if SCHEDULES[name].lead_steps is None else [None, 0.3, 1.0, 5.0]
    for lead in leads:
        if lead is not None and lead > (SCHEDULES[name].max_staleness if bound is None else bound):
            continue
        spec = job(
            schedule={"name": name, "max_staleness": bound, "lead_steps": lead},
            training={"steps": steps, "prompts_per_step": 5},
            evaluation={"every": 0},
            algorithm={"group_size": 4, "groups": {"num_spare": 1}},
        )
        assert most_running(spec) == 5 * groups_opened_by_schedule(spec)


def test_hint_names_unfilled_replicas() -> None:
    demand: dict[str, Any] = {"training": {"prompts_per_step": 16}, "schedule": {"lead_steps": 2}}  # 3 · 16 · 8 = 384
    assert hints_of(job(**demand, rollout={"replicas": 6, "max_batch": 64})) == ()
    [hint] = hints_of(job(**demand, rollout={"replicas": 16, "max_batch": 64}))
    assert hint.path == "rollout.replicas"
    assert "1,024 trajectories" in hint.message and "more than 384 running" in hint.message
    assert "Set rollout.replicas to 6" in hint.message and "schedule.lead_steps" in hint.message
    [hint] = hints_of(job(schedule={"name": "sync"}, rollout={"replicas": 3, "max_batch": 64}))
    assert "rollout.replicas to 2" in hint.message and "lead_steps" not in hint.message


@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("top_k", 50), ("min_p", 0.05)])
def test_hint_names_setting_that_cuts_the_distribution(name: str, value: float) -> None:
    [hint] = hints_of(job(rollout={name: value}))
    assert hint.path == f"rollout.{name}" and f"rollout.{name} {value:g}" in hint.message


def test_default_job_and_evaluation_have_no_hint() -> None:
    assert hints_of(job()) == ()
    evaluates = {"training": {"steps": 0}, "evaluation": {"every": 0}, "rollout": {"replicas": 40, "top_p": 0.9}}
    assert hints_of(job(**evaluates)) == ()
