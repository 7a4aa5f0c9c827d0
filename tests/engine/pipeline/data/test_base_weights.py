"""Data of an attempt that resumes before version 0, the base weights, was evaluated."""

from dataclasses import replace

from engine.pipeline.messages.to_data import BatchWanted, ResumedFrom
from engine.pipeline.messages.to_driver import EvaluationReported
from engine.pipeline.messages.to_relay import VersionReleased
from engine.pipeline.records import DataProgress
from engine.policy.lineage import BASE_WEIGHTS, WeightsId
from tests.engine.pipeline.brain_builders import PLAN, DataWithDisk, answers, granted, holding, of, to_replica

LONG = replace(PLAN, steps=9)
PROGRESS = DataProgress(ended=((0, 4),), ledger=(("trained", 8),), base_is_due=True)


def resumed(progress: DataProgress = PROGRESS) -> DataWithDisk:
    return DataWithDisk(LONG, start_step=2, progress=progress)


def test_base_weights_answer_and_are_then_released() -> None:
    data = resumed()
    tasks = granted(data.sync(version=0))
    assert [task.exact for task in tasks] == [BASE_WEIGHTS] * 2, "and no training prompt begins on them"
    effects = data.sync(version=0, wants=0, finished=answers(tasks))
    assert [report.weights for report in of(effects, EvaluationReported)] == [BASE_WEIGHTS]
    assert of(effects, VersionReleased) == [VersionReleased(weights=BASE_WEIGHTS)]


def test_replica_on_later_weights_trains_meanwhile() -> None:
    data = resumed()
    data.sync(0, version=0)
    assert {task.key.evaluation for task in granted(data.sync(1, version=2))} == {None}


def test_idle_replica_is_ordered_to_hold_base_weights() -> None:
    (grant,) = to_replica(resumed().sync(version=2), 0)
    assert grant.to_hold == BASE_WEIGHTS


def test_attempt_without_the_mark_evaluates_no_base_weights() -> None:
    data = resumed(replace(PROGRESS, base_is_due=False))
    assert granted(data.sync(version=0)) == [], "too old for training, and nothing to evaluate"
    assert not data.train(3).progress.base_is_due


def test_batches_carry_the_mark_until_the_evaluation_is_over() -> None:
    data = DataWithDisk(LONG)
    tasks = granted(data.sync(wants=2))
    assert data.train(1).progress.base_is_due
    data.sync(1, wants=0, groups=holding(tasks), finished=answers(tasks))
    assert not data.train(2).progress.base_is_due


def test_restarted_data_continues_the_evaluation() -> None:
    data = resumed()
    tasks = granted(data.sync(version=0))
    data.sync(version=0, wants=0, groups=holding(tasks[1:]), finished=answers(tasks[:1]))
    data.restart()
    effects = data.sync(version=0, wants=0, incarnation=1, finished=answers(tasks[1:]))
    assert [report.num_prompts for report in of(effects, EvaluationReported)] == [2]


def test_fork_evaluates_republished_base_and_releases_the_rest() -> None:
    """A first attempt: its second trainer starts from the base weights, its third from a checkpoint with the mark."""
    data = DataWithDisk(LONG)
    data.batch(1, epoch=1, resumed=ResumedFrom(step=0, progress=DataProgress()))
    assert len(granted(data.sync(1, epoch=1, wants=2))) == 2, "the held-out prompts, which are not answered yet"
    kept = data.train(1, epoch=1)
    assert kept.progress.base_is_due
    effects = data.handle(
        BatchWanted(step=2, epoch=2, checkpointed=1, resumed=ResumedFrom(step=1, progress=kept.progress))
    )
    assert of(effects, VersionReleased) == [VersionReleased(weights=WeightsId(1, 0))]
    assert [evaluation.weights for evaluation in data.brain.state.evaluations] == [BASE_WEIGHTS]


def test_base_weights_are_released_if_evaluated_meanwhile() -> None:
    data = resumed()
    tasks = granted(data.sync(version=0))
    data.sync(version=0, wants=0, finished=answers(tasks))
    effects = data.handle(BatchWanted(step=3, epoch=1, resumed=ResumedFrom(step=2, progress=PROGRESS)))
    assert of(effects, VersionReleased) == [VersionReleased(weights=BASE_WEIGHTS)]
    assert data.brain.state.evaluations == []


def test_fork_releases_a_version_of_the_dead_branch() -> None:
    data = DataWithDisk(replace(LONG, evaluate_every=1)).past_the_evaluation()
    kept = data.train(1)
    data.train(2)
    data.handle(BatchWanted(step=3))
    effects = data.handle(BatchWanted(step=2, epoch=1, resumed=ResumedFrom(step=1, progress=kept.progress)))
    assert of(effects, VersionReleased) == [VersionReleased(weights=WeightsId(0, 2))]
