"""Results of an evaluation: avg@k and pass@k over the prompts, each with its standard error."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.pipeline.messages.to_driver import EvaluationReported, FaultReported
from engine.pipeline.records import Failure, GroupTask
from tests.engine.pipeline.brain_builders import PLAN, DataWithDisk, answers, granted, of

PAIRS = replace(PLAN, evaluation_samples=2)


def held_out(data: DataWithDisk) -> list[GroupTask]:
    return [task for task in granted(data.sync(wants=4)) if task.key.evaluation is not None]


def reported(data: DataWithDisk, tasks: Sequence[GroupTask], rewards: Sequence[float | None]) -> EvaluationReported:
    """`rewards`: of each sample in the order of the tasks; None: its grader failed."""
    failure = Failure(kind="error", reason="grader")
    graded = [
        replace(answer, reward=reward or 0.0, failure=failure if reward is None else None)
        for answer, reward in zip(answers(tasks), rewards, strict=True)
    ]
    (report,) = of(data.sync(wants=0, finished=tuple(graded)), EvaluationReported)
    assert isinstance(report, EvaluationReported)
    return report


def test_each_held_out_prompt_is_asked_for_k_answers() -> None:
    tasks = held_out(DataWithDisk(PAIRS))
    assert [(task.key.ordinal, task.samples) for task in tasks] == [(0, (0, 1)), (1, (0, 1))]


def test_mean_and_error_are_over_prompts_not_answers() -> None:
    data = DataWithDisk(PAIRS)
    report = reported(data, held_out(data), [1.0, 0.0, 0.0, 0.0])
    assert (report.num_prompts, report.num_samples, report.reward_mean) == (2, 2, 0.25)
    assert report.reward_std == pytest.approx(0.125**0.5)
    assert report.reward_error == pytest.approx(0.25), "the spread of 0.5 and 0, over the root of 2"
    assert report.pass_rate == 0.5 and report.pass_error == pytest.approx(0.5)


def test_prompts_weigh_the_same_despite_failed_graders() -> None:
    data = DataWithDisk(PAIRS)
    report = reported(data, held_out(data), [None, 1.0, 1.0, 0.0])
    assert (report.num_prompts, report.reward_mean, report.pass_rate) == (2, 0.75, 1.0)


def test_prompt_without_a_graded_answer_is_left_out() -> None:
    data = DataWithDisk(PAIRS)
    report = reported(data, held_out(data), [None, None, 0.5, 0.0])
    assert (report.num_prompts, report.reward_mean, report.reward_error) == (1, 0.25, 0.0)


@pytest.mark.parametrize(("pass_mark", "pass_rate"), [(1.0, 0.5), (0.5, 1.0), (1.5, 0.0)])
def test_answer_passes_from_the_pass_mark_on(pass_mark: float, pass_rate: float) -> None:
    data = DataWithDisk(replace(PLAN, pass_mark=pass_mark))
    assert reported(data, held_out(data), [1.0, 0.5]).pass_rate == pass_rate


def test_untrusted_answer_never_passes() -> None:
    data = DataWithDisk()
    doubtful = tuple(replace(each, trusted=False) for each in answers(held_out(data)))
    (report,) = of(data.sync(wants=0, finished=doubtful), EvaluationReported)
    assert report.pass_rate == 0.0


def test_answers_of_a_prompt_given_up_still_count() -> None:
    data = DataWithDisk(PAIRS)
    first, second = held_out(data)
    data.sync(wants=0, finished=(*answers([first]), *answers([second])[:1]))
    data.brain.state.evaluations[0].give_up(second.key)
    effects = data.sync(wants=0)
    (report,) = of(effects, EvaluationReported)
    assert (report.num_prompts, report.reward_mean) == (2, 1.0)
    assert "1 held-out answers never ended" in [fault.message for fault in of(effects, FaultReported)]


def test_given_up_prompt_is_not_asked_again_after_a_restart() -> None:
    data = DataWithDisk()
    first, second = held_out(data)
    data.brain.state.evaluations[0].give_up(second.key)
    data.disk.snapshot, data.disk.records = data.brain.state.snapshot(), []
    data.restart()
    assert [group.key for group in data.brain.state.evaluations[0].groups] == [first.key]
    (report,) = of(data.sync(wants=0, finished=answers([first])), EvaluationReported)
    assert report.num_prompts == 1
