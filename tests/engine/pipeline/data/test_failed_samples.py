"""A failed sample does not end its group: the rest is trained, or a new sample replaces it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.pipeline.data.state import DataState
from engine.pipeline.failure_counts import FailureCounts
from engine.pipeline.messages.to_data import BatchWanted, ResumedFrom
from engine.pipeline.messages.to_driver import LedgerReported, SamplesEnded
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress, Failure, GroupTask, Trajectory
from engine.spec.job import AlgorithmSpec, GroupsSpec, JobSpec
from tests.engine.pipeline.brain_builders import PLAN, DataWithDisk, answers, granted, of

FOUR = replace(PLAN, group_size=4, groups_per_step=1, min_group=2)
FAILED = Failure(kind="timeout", reason="its tool was away")


def failing(tasks: Sequence[GroupTask], *samples: int) -> tuple[Trajectory, ...]:
    return tuple(
        replace(each, failure=FAILED if each.key.sample in samples else None, reward=float(each.key.sample % 2))
        for each in answers(tasks)
    )


def waiting_for_a_batch(plan: Plan) -> tuple[DataWithDisk, Sequence[GroupTask]]:
    data = DataWithDisk(plan).past_the_evaluation()
    data.handle(BatchWanted(step=1))
    return data, granted(data.sync(wants=4))


def test_the_rest_of_a_group_is_trained() -> None:
    data, tasks = waiting_for_a_batch(FOUR)
    [batch] = of(data.sync(wants=0, finished=failing(tasks, 3)), BatchReady)
    assert [each.key.sample for each in batch.groups[0].trajectories] == [0, 1, 2]
    assert dict(batch.progress.ledger) == {"trained": 3, "failed": 1, "filtered": 0, "dropped_stale": 0}
    [ended] = of(data.handle(BatchWanted(step=2)), SamplesEnded)
    assert [(each.end, each.reason) for each in ended.to_read] == [
        ("failed", "Its group continued without it. its tool was away")
    ]
    assert (data.counts["trained"], data.counts["failed"]) == (3, 1)
    assert data.brain.state.failures == FailureCounts(num_samples=1, num_short_groups=1)


def test_a_group_waits_for_all_its_samples() -> None:
    data, tasks = waiting_for_a_batch(FOUR)
    failed, *graded = failing(tasks, 0)
    assert not of(data.sync(wants=0, finished=(failed, *graded[:2])), BatchReady)
    assert of(data.sync(wants=0, finished=tuple(graded[2:])), BatchReady)


def test_a_group_with_too_few_verdicts_is_dropped_at_once() -> None:
    data, tasks = waiting_for_a_batch(FOUR)
    data.sync(wants=0, finished=failing(tasks, 0, 1, 2)[:3])
    assert data.counts["failed"] == 4
    assert data.brain.state.failures == FailureCounts(num_samples=3, num_groups=1)


def test_a_failed_sample_is_replaced() -> None:
    data, tasks = waiting_for_a_batch(replace(FOUR, replaces_failed=True))
    effects = data.sync(wants=0, finished=failing(tasks, 1))
    assert not of(effects, BatchReady)
    [again] = granted(effects)
    assert again.key == tasks[0].key and again.samples == (4,) and again.lease == tasks[0].lease
    [batch] = of(data.sync(wants=0, finished=failing([again])), BatchReady)
    assert [each.key.sample for each in batch.groups[0].trajectories] == [0, 2, 3, 4]
    assert dict(batch.progress.ledger)["failed"] == 0
    [reported] = of(data.handle(BatchWanted(step=2)), LedgerReported)
    assert reported.failures == FailureCounts(num_samples=1, num_replacements=1)
    assert reported.counts["replaced"] == 1 and reported.counts["trained"] == 4
    assert DataState.restored(data.plan, data.brain.state.snapshot()).failures == reported.failures
    assert data.restart().brain.state.failures == reported.failures


def test_spare_samples_are_used_up_before_any_is_started() -> None:
    data = DataWithDisk(replace(FOUR, replaces_failed=True, num_spare=1)).past_the_evaluation()
    data.handle(BatchWanted(step=1))
    tasks = granted(data.sync(wants=5))
    ended = failing(tasks, 0, 1)
    assert not granted(data.sync(wants=0, finished=ended[:1])), "the spare sample takes its place"
    [again] = granted(data.sync(wants=0, finished=ended[1:]))
    assert again.samples == (5,)
    [batch] = of(data.sync(wants=0, finished=failing([again])), BatchReady)
    assert [each.key.sample for each in batch.groups[0].trajectories] == [2, 3, 4, 5]
    assert data.brain.state.failures == FailureCounts(num_samples=2, num_replacements=1)


def test_replacements_end_and_the_rest_is_trained() -> None:
    data, tasks = waiting_for_a_batch(replace(FOUR, replaces_failed=True))
    effects = data.sync(wants=0, finished=failing(tasks, 1))
    for _ in range(FOUR.group_size):
        assert not of(effects, BatchReady)
        effects = data.sync(wants=0, finished=failing(granted(effects), *range(99)))
    [batch] = of(effects, BatchReady)
    assert [each.key.sample for each in batch.groups[0].trajectories] == [0, 2, 3]


def test_fork_takes_failed_samples_back_with_their_group() -> None:
    """A new trainer resumes before the step."""
    data, tasks = waiting_for_a_batch(FOUR)
    data.sync(wants=0, finished=failing(tasks, 3))
    data.handle(BatchWanted(step=2))
    assert (data.counts["trained"], data.counts["failed"]) == (3, 1)
    data.handle(BatchWanted(step=1, epoch=1, resumed=ResumedFrom(step=0, progress=DataProgress())))
    assert (data.counts["trained"], data.counts["failed"], data.counts["rolled_back"]) == (0, 0, 3)


@pytest.mark.parametrize(
    ("group_size", "groups", "least"),
    [
        (16, {}, 8),
        (3, {}, 2),
        (1, {}, 1),
        (16, {"min_group": 12}, 12),
        (4, {"min_group": 12}, 4),
        (16, {"on_failure": "replace"}, 8),
        (16, {"on_failure": "drop"}, 16),
    ],
)
def test_least_group_follows_from_the_spec(group_size: int, groups: dict[str, object], least: int) -> None:
    algorithm = AlgorithmSpec(name="reinforce_pp", group_size=group_size, groups=GroupsSpec.model_validate(groups))
    assert Plan.from_spec(JobSpec(name="t", algorithm=algorithm)).min_group == least
