"""A job that trains nothing: the weights that it begins with answer the held-out prompts, once."""

from dataclasses import replace

import pytest

from engine.live.recorder import Recorder
from engine.pipeline.effects import PublishWeights, SaveCheckpoint
from engine.pipeline.journal import TrainerForked
from engine.pipeline.messages import BatchWanted, PauseRequested, ResumedFrom, TrainerLoaded, TrainingEnded
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress, GroupTask
from engine.pipeline.reports import (
    EvaluationReported,
    EvaluationStarted,
    PartFinished,
    ReplicaReady,
    TrainerPaused,
    TrainerReady,
)
from engine.pipeline.trainer import TrainerBrain
from engine.policy.lineage import WeightsId
from engine.sim.faults import Faults
from engine.sim.scenario import SCHEDULES, evaluation_of, replay_command
from engine.sim.world import World
from engine.sinks.memory import MemorySink
from engine.spec.facts import Evaluated, PhaseChanged
from engine.spec.job import EvaluationSpec, JobSpec, RolloutSpec, ScheduleName, TrainingSpec
from tests.engine.brain_builders import PLAN as WIDE
from tests.engine.brain_builders import Room, answers, granted, of

PLAN = replace(WIDE, steps=0)
STEP = 50


def begun(plan: Plan = PLAN) -> tuple[Room, list[GroupTask]]:
    """Data that was told to evaluate, and what it hands out."""
    data = Room(plan, start_step=STEP)
    assert granted(data.sync(version=STEP)) == []
    return data, granted(data.handle(TrainingEnded(version=STEP)))


# ── the brains ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_trainer_hands_out_its_weights_and_has_nothing_more_to_do() -> None:
    effects = TrainerBrain(PLAN).handle(TrainerLoaded(step=STEP, num_parameters=1), 0.0)
    assert of(effects, PublishWeights) == [PublishWeights(version=STEP, pinned=True)]
    assert [ended.version for ended in of(effects, TrainingEnded)] == [STEP]
    assert of(effects, PartFinished) == [PartFinished(part="trainer")]
    assert of(effects, BatchWanted) == of(effects, SaveCheckpoint) == []


def test_data_hands_out_held_out_prompts_only_and_is_done_when_they_are_answered() -> None:
    data, tasks = begun()
    assert [task.key.evaluation for task in tasks] == [STEP, STEP]
    assert {task.exact for task in tasks} == {WeightsId(0, STEP)}
    first, second = answers(tasks[:1], version=STEP), answers(tasks[1:], version=STEP, reward=0.0)
    effects = data.sync(version=STEP, finished=(*first, *second))
    [report] = of(effects, EvaluationReported)
    assert (report.version, report.num_prompts, report.reward_mean) == (STEP, 2, 0.5)
    assert report.reward_std == pytest.approx(0.5**0.5)
    assert of(effects, PartFinished) == [PartFinished(part="data")]
    assert granted(data.sync(version=STEP)) == [] and set(data.counts.values()) == {0}


def test_the_spread_of_one_answer_is_nothing() -> None:
    data, tasks = begun(replace(PLAN, evaluation_prompts=1))
    [report] = of(data.sync(version=STEP, finished=answers(tasks, version=STEP)), EvaluationReported)
    assert report.reward_std == 0.0


def test_a_trainer_that_is_started_again_does_not_have_the_prompts_answered_twice() -> None:
    data, tasks = begun()
    data.sync(version=STEP, finished=answers(tasks[:1], version=STEP))
    again = TrainingEnded(version=STEP, epoch=1, resumed=ResumedFrom(step=STEP, progress=DataProgress()))
    data.handle(again)
    [left] = data.brain.state.evaluations
    assert left.weights == WeightsId(1, STEP) and len(left.groups) == 1
    assert any(isinstance(record, TrainerForked) for record in data.disk.records)


def test_an_answer_of_other_weights_does_not_count() -> None:
    data, tasks = begun()
    effects = data.sync(version=STEP, finished=answers(tasks, version=STEP - 1))
    assert of(effects, EvaluationReported) == []


@pytest.mark.parametrize("is_loaded_first", [True, False])
def test_it_pauses_at_once_since_there_is_nothing_to_write_down(is_loaded_first: bool) -> None:
    messages: list[TrainerLoaded | PauseRequested] = [TrainerLoaded(step=STEP, num_parameters=1), PauseRequested()]
    brain = TrainerBrain(PLAN)
    effects = [brain.handle(message, 0.0) for message in (messages if is_loaded_first else messages[::-1])]
    assert of(effects[-1], TrainerPaused) == [TrainerPaused(step=STEP, checkpointed=STEP)]


def test_its_phases_say_that_it_evaluates() -> None:
    sink = MemorySink()
    spec = JobSpec(name="e", training=TrainingSpec(steps=0), rollout=RolloutSpec(replicas=1))
    recorder = Recorder(spec, sink, start_step=STEP)
    recorder.enter("loading_weights")
    for report in (
        TrainerReady(num_parameters=9),
        EvaluationStarted(version=STEP),
        ReplicaReady(replica=0, incarnation=0),
        EvaluationReported(version=STEP, num_prompts=4, reward_mean=0.5, reward_std=0.25, length_mean=8.0),
    ):
        recorder.on_report(report)
    phases = [body.phase for body in sink.bodies if isinstance(body, PhaseChanged)]
    assert phases == ["loading_weights", "evaluating"]
    [fact] = [body for body in sink.bodies if isinstance(body, Evaluated)]
    assert (fact.reward_mean, fact.reward_std) == (0.5, 0.25)


# ── the spec ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_spec_without_steps_is_an_evaluation_and_has_none_in_between() -> None:
    assert JobSpec(name="e", training=TrainingSpec(steps=0)).only_evaluates
    assert not JobSpec(name="e", training=TrainingSpec(steps=1)).only_evaluates
    with pytest.raises(ValueError, match="every"):
        JobSpec(name="e", training=TrainingSpec(steps=0), evaluation=EvaluationSpec(every=1))


# ── the whole, under every kind of weather ────────────────────────────────────────────────────────────────────────────


def calm(schedule: ScheduleName, **changes: int) -> World:
    return World(
        seed=1,
        plan=replace(evaluation_of(1, schedule).plan, **changes),  # type: ignore[arg-type]
        num_replicas=3,
        faults=Faults(),
        start_step=STEP,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_held_out_prompt_is_answered_once_by_the_checkpoints_weights(schedule: ScheduleName) -> None:
    oracle = calm(schedule, evaluation_prompts=23).run().oracle
    [report] = oracle.evaluated
    assert (report.version, report.num_prompts) == (STEP, 23)
    assert oracle.published == {WeightsId(0, STEP)} and oracle.faults == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_fault_order_breaks_an_evaluation(schedule: ScheduleName) -> None:
    for seed in range(40):
        world = evaluation_of(seed, schedule)
        try:
            oracle = world.run().oracle
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed must be told
            pytest.fail(f"{type(error).__name__}: {error}\n{replay_command(seed, schedule, evaluates=True)}")
        prompts = world.plan.evaluation_prompts
        assert all(report.num_prompts <= prompts and report.version == world.start_step for report in oracle.evaluated)


def test_the_plan_of_a_spec_evaluates_whatever_step_it_begins_with() -> None:
    plan = Plan.from_spec(JobSpec(name="e", training=TrainingSpec(steps=0)))
    assert plan.only_evaluates and plan.evaluates(STEP) and plan.publishes(STEP)
