"""Data of a job without steps: each held-out prompt is answered once, counted, and reported."""

from dataclasses import replace

import pytest

from engine.pipeline.journal import TrainerForked
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import ResumedFrom, TrainingEnded
from engine.pipeline.messages.to_driver import AnswersCounted, EvaluationReported, PartFinished
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress, GroupTask
from engine.policy.lineage import WeightsId
from tests.engine.pipeline.brain_builders import PLAN as WIDE
from tests.engine.pipeline.brain_builders import DataWithDisk, answers, granted, of

PLAN = replace(WIDE, steps=0)
STEP = 50


def begun(plan: Plan = PLAN) -> tuple[DataWithDisk, list[GroupTask]]:
    """Data that has started an evaluation, and the tasks that it grants."""
    data = DataWithDisk(plan, start_step=STEP)
    assert granted(data.sync(version=STEP)) == []
    return data, granted(data.handle(TrainingEnded(weights=WeightsId(0, STEP))))


def counted(*counts: int, of_all: int) -> list[AnswersCounted]:
    return [AnswersCounted(version=STEP, num_answered=count, num_prompts=of_all) for count in counts]


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
    counts: list[AnswersCounted] = []
    while data.now < 2.2 * PLAN.sample_deadline_s:
        data.now += 1.0
        counts += of(data.handle(Tick()), AnswersCounted)
    assert counts == counted(2, of_all=2)


def test_restarted_data_counts_the_answers_it_recovered() -> None:
    data, tasks = begun()
    data.sync(version=STEP, finished=answers(tasks[:1], version=STEP))
    assert of(data.restart().sync(version=STEP), AnswersCounted) == counted(1, of_all=2)


def test_training_job_sends_no_answer_counts() -> None:
    data = DataWithDisk(WIDE)
    tasks = granted(data.sync(version=0))
    assert tasks[0].key.evaluation == 0
    assert of(data.sync(version=0, finished=answers(tasks, version=0)), AnswersCounted) == []
