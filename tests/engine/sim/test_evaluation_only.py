"""A job that trains nothing: its initial weights answer the held-out prompts once."""

from dataclasses import replace

import pytest

from engine.live.facts.recorder import Recorder
from engine.pipeline.driver.brain import DriverBrain
from engine.pipeline.effects import AnnounceReady, EnterPhase, PublishWeights, SaveCheckpoint
from engine.pipeline.journal import TrainerForked
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import BatchWanted, PauseRequested, ResumedFrom, TrainingEnded
from engine.pipeline.messages.to_driver import (
    AnswersCounted,
    EvaluationReported,
    EvaluationStarted,
    PartFinished,
    ReplicaReady,
    TrainerPaused,
    TrainerReady,
)
from engine.pipeline.messages.to_trainer import TrainerLoaded
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress, GroupTask
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.lineage import WeightsId
from engine.sim.faults import Faults
from engine.sim.scenario import SCHEDULES, evaluation_of, replay_command
from engine.sim.world import World
from engine.sinks.memory import MemorySink
from engine.spec.facts import Evaluated, PromptsAnswered
from engine.spec.job import EvaluationSpec, JobSpec, ResourceSpec, RolloutSpec, TrainerSpec, TrainingSpec
from engine.spec.schedules import ScheduleName
from tests.engine.pipeline.brain_builders import PLAN as WIDE
from tests.engine.pipeline.brain_builders import DataWithDisk, answers, granted, of

PLAN = replace(WIDE, steps=0)
STEP = 50
REPORT = EvaluationReported(
    weights=WeightsId(0, STEP), num_prompts=4, reward_mean=0.5, reward_std=0.25, length_mean=8.0
)


def begun(plan: Plan = PLAN) -> tuple[DataWithDisk, list[GroupTask]]:
    """Data that has started an evaluation, and the tasks that it grants."""
    data = DataWithDisk(plan, start_step=STEP)
    assert granted(data.sync(version=STEP)) == []
    return data, granted(data.handle(TrainingEnded(weights=WeightsId(0, STEP))))


# ── the brains ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_trainer_publishes_its_weights_and_finishes() -> None:
    effects = TrainerBrain(PLAN).handle(TrainerLoaded(step=STEP, num_parameters=1), 0.0)
    assert of(effects, PublishWeights) == [PublishWeights(weights=WeightsId(0, STEP), pinned=True)]
    assert [ended.weights for ended in of(effects, TrainingEnded)] == [WeightsId(0, STEP)]
    assert of(effects, PartFinished) == [PartFinished(part="trainer")]
    assert of(effects, BatchWanted) == of(effects, SaveCheckpoint) == []


def test_data_grants_held_out_prompts_only_then_finishes() -> None:
    data, tasks = begun()
    assert [task.key.evaluation for task in tasks] == [STEP, STEP]
    assert {task.exact for task in tasks} == {WeightsId(0, STEP)}
    first, second = answers(tasks[:1], version=STEP), answers(tasks[1:], version=STEP, reward=0.0)
    effects = data.sync(version=STEP, finished=(*first, *second))
    [report] = of(effects, EvaluationReported)
    assert (report.weights.version, report.num_prompts, report.reward_mean) == (STEP, 2, 0.5)
    assert report.reward_std == pytest.approx(0.5**0.5)
    assert of(effects, PartFinished) == [PartFinished(part="data")]
    assert granted(data.sync(version=STEP)) == [] and set(data.counts.values()) == {0}


def test_the_spread_of_one_answer_is_nothing() -> None:
    data, tasks = begun(replace(PLAN, evaluation_prompts=1))
    [report] = of(data.sync(version=STEP, finished=answers(tasks, version=STEP)), EvaluationReported)
    assert report.reward_std == 0.0


def test_restarted_trainer_repeats_no_answered_prompt() -> None:
    data, tasks = begun()
    data.sync(version=STEP, finished=answers(tasks[:1], version=STEP))
    again = TrainingEnded(weights=WeightsId(1, STEP), resumed=ResumedFrom(step=STEP, progress=DataProgress()))
    data.handle(again)
    [left] = data.brain.state.evaluations
    assert left.weights == WeightsId(1, STEP) and len(left.groups) == 1
    assert any(isinstance(record, TrainerForked) for record in data.disk.records)


def test_trainer_restarted_after_evaluation_repeats_nothing() -> None:
    data, tasks = begun()
    data.sync(version=STEP, finished=answers(tasks, version=STEP))
    again = TrainingEnded(weights=WeightsId(1, STEP), resumed=ResumedFrom(step=STEP, progress=DataProgress()))
    effects = data.handle(again)
    assert of(effects, PartFinished) == [PartFinished(part="data", epoch=1)]
    assert data.brain.state.evaluations == [] and granted(data.sync(version=STEP)) == []


def test_an_answer_of_other_weights_does_not_count() -> None:
    data, tasks = begun()
    effects = data.sync(version=STEP, finished=answers(tasks, version=STEP - 1))
    assert of(effects, EvaluationReported) == []


@pytest.mark.parametrize("is_loaded_first", [True, False])
def test_evaluation_pauses_at_once(is_loaded_first: bool) -> None:
    messages: list[TrainerLoaded | PauseRequested] = [TrainerLoaded(step=STEP, num_parameters=1), PauseRequested()]
    brain = TrainerBrain(PLAN)
    effects = [brain.handle(message, 0.0) for message in (messages if is_loaded_first else messages[::-1])]
    assert of(effects[-1], TrainerPaused) == [TrainerPaused(step=STEP, checkpointed=STEP)]


def test_phases_of_an_evaluation_only_job() -> None:
    driver = DriverBrain(PLAN, now=0.0, num_replicas=1)
    effects = [
        effect
        for report in (
            TrainerReady(num_parameters=9),
            EvaluationStarted(version=STEP),
            ReplicaReady(replica=0, incarnation=0),
            REPORT,
        )
        for effect in driver.handle(report, 0.0)
    ]
    assert effects == [AnnounceReady(num_replicas=1, num_parameters=9), EnterPhase(phase="evaluating")]


def test_repeated_result_is_one_fact() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=STEP)
    for _ in range(2):
        recorder.on_report(REPORT)
    [fact] = [body for body in sink.bodies if isinstance(body, Evaluated)]
    assert (fact.reward_mean, fact.reward_std) == (0.5, 0.25)


# ── how far it is ─────────────────────────────────────────────────────────────────────────────────────────────────────


def counted(*counts: int, of_all: int) -> list[AnswersCounted]:
    return [AnswersCounted(version=STEP, num_answered=count, num_prompts=of_all) for count in counts]


def test_progress_is_sent_at_most_once_a_second_and_at_the_end() -> None:
    data, tasks = begun(replace(PLAN, evaluation_prompts=6))

    def counts_at(now: float, *finished: GroupTask) -> list[AnswersCounted]:
        data.now = now
        effects = data.sync(version=STEP, finished=answers(finished, version=STEP))
        return of(effects, AnswersCounted)

    assert counts_at(0.0, tasks[0]) == counted(1, of_all=6)
    assert counts_at(0.4, tasks[1]) == counts_at(0.9, tasks[2]) == []
    assert counts_at(1.0) == counted(3, of_all=6), "the withheld count is sent, even without new answers"
    assert not any(counts_at(float(now)) for now in range(2, 10)), "no count is sent twice"
    assert counts_at(9.5, tasks[3]) == counted(4, of_all=6)
    assert counts_at(9.6, tasks[4], tasks[5]) == counted(6, of_all=6)


def test_the_last_count_comes_before_the_result() -> None:
    data, tasks = begun()
    effects = data.sync(version=STEP, finished=answers(tasks, version=STEP))
    sent = [type(message) for message in of(effects, AnswersCounted | EvaluationReported | PartFinished)]  # type: ignore[arg-type]  # isinstance takes it
    assert sent == [AnswersCounted, EvaluationReported, PartFinished]


def test_evaluation_does_not_wait_for_given_up_samples() -> None:
    data, tasks = begun()
    data.sync(version=STEP, finished=answers(tasks[:1], version=STEP))
    told: list[AnswersCounted] = []
    while data.now < 2.2 * PLAN.sample_deadline_s:
        data.now += 1.0
        told += of(data.handle(Tick()), AnswersCounted)
    assert told == counted(2, of_all=2)


def test_restarted_data_counts_the_answers_it_recovered() -> None:
    data, tasks = begun()
    data.sync(version=STEP, finished=answers(tasks[:1], version=STEP))
    assert of(data.restart().sync(version=STEP), AnswersCounted) == counted(1, of_all=2)


def test_training_job_sends_no_answer_counts() -> None:
    data = DataWithDisk(WIDE)
    tasks = granted(data.sync(version=0))
    assert tasks[0].key.evaluation == 0
    assert of(data.sync(version=0, finished=answers(tasks, version=0)), AnswersCounted) == []


def test_the_same_count_is_one_fact() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=STEP)
    for report in counted(3, 3, 4, of_all=6):
        recorder.on_report(report)
    assert [(body.num_answered, body.num_prompts) for body in sink.bodies if isinstance(body, PromptsAnswered)] == [
        (3, 6),
        (4, 6),
    ]


# ── the spec ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_spec_without_steps_only_evaluates_once() -> None:
    assert JobSpec(name="e", training=TrainingSpec(steps=0)).only_evaluates
    assert not JobSpec(name="e", training=TrainingSpec(steps=1)).only_evaluates
    with pytest.raises(ValueError, match="every"):
        JobSpec(name="e", training=TrainingSpec(steps=0), evaluation=EvaluationSpec(every=1))


def test_evaluation_holds_no_trainer_devices() -> None:
    for asked in (0, 1, 4):
        held = ResourceSpec(trainer_devices=asked)
        spec = JobSpec(name="e", training=TrainingSpec(steps=0), rollout=RolloutSpec(replicas=3), resources=held)
        assert (spec.trainer_devices, spec.num_devices, spec.min_devices) == (0, 3, 3)
    trains = JobSpec(
        name="t",
        rollout=RolloutSpec(replicas=3),
        trainer=TrainerSpec(backend="deepspeed"),
        resources=ResourceSpec(trainer_devices=4),
    )
    assert (trains.trainer_devices, trains.num_devices) == (4, 7)


def test_training_job_requires_a_trainer_device() -> None:
    with pytest.raises(ValueError, match="trainer_devices must be at least 1"):
        JobSpec(name="t", resources=ResourceSpec(trainer_devices=0))


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


def test_evaluation_plan_evaluates_any_start_step() -> None:
    plan = Plan.from_spec(JobSpec(name="e", training=TrainingSpec(steps=0)))
    assert plan.only_evaluates and plan.evaluates(STEP) and plan.publishes(STEP)
