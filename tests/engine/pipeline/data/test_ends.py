"""Of the samples that never reach the trainer, each step reports one of each end and reason, once."""

from collections.abc import Iterable
from dataclasses import replace

from engine.pipeline.data.ends import NO_SIGNAL
from engine.pipeline.effects import Effect
from engine.pipeline.messages.to_data import BatchWanted
from engine.pipeline.messages.to_driver import ReadTrajectory, SamplesEnded
from engine.pipeline.plan import CHECKS_PER_DEADLINE, MAX_OWNERS
from engine.pipeline.records import Failure, Trajectory
from tests.engine.pipeline.brain_builders import PLAN, DataWithDisk, answers, granted, of

WIDE = replace(PLAN, filters=True, max_batch=40, schedule=replace(PLAN.schedule, lead_steps=8.0))


def reported(effects: Iterable[Effect]) -> list[ReadTrajectory]:
    return [read for ended in of(effects, SamplesEnded) for read in ended.to_read]


def with_signal(answered: Iterable[Trajectory]) -> tuple[Trajectory, ...]:
    return tuple(replace(each, reward=float(each.key.sample)) for each in answered)


def late(answer: Trajectory) -> Trajectory:
    return replace(answer, failure=Failure(kind="timeout", reason="no answer within 5 s"))


def broken(answer: Trajectory) -> Trajectory:
    return replace(answer, failure=Failure(kind="error", reason="no sandbox"))


def trained_with(data: DataWithDisk) -> list[Effect]:
    """One group without signal, two with different failures, a third that fails like the first, and a batch."""
    data.handle(BatchWanted(step=1))
    tasks = granted(data.sync(wants=40))
    same, failing, hanging, again = (answers([task]) for task in tasks[:4])
    given = (*same, *map(broken, failing), *map(late, hanging), *map(broken, again), *with_signal(answers(tasks[4:6])))
    data.sync(wants=0, finished=given)
    return data.handle(BatchWanted(step=2))


def test_step_reports_one_sample_per_end_and_kind_of_reason() -> None:
    data = DataWithDisk(WIDE).past_the_evaluation()
    effects = trained_with(data)
    assert [ended.step for ended in of(effects, SamplesEnded)] == [1]
    assert [(read.end, read.reason) for read in reported(effects)] == [
        ("filtered", NO_SIGNAL),
        ("failed", "no sandbox"),
        ("failed", "no answer within 5 s"),
    ]
    assert {read.group_size for read in reported(effects)} == {2}
    assert data.counts["filtered"] == 2 and data.counts["failed"] == 6


def test_ended_sample_is_reported_once_and_not_after_a_restart() -> None:
    data = DataWithDisk(WIDE).past_the_evaluation()
    assert reported(trained_with(data)) and not reported(data.handle(BatchWanted(step=2)))
    reborn = DataWithDisk(WIDE).past_the_evaluation()
    reborn.handle(BatchWanted(step=1))
    tasks = granted(reborn.sync(wants=40))
    reborn.sync(wants=0, finished=(*answers(tasks[:1]), *with_signal(answers(tasks[1:3]))))
    assert reborn.counts["filtered"] == 2
    assert not reported(reborn.restart().handle(BatchWanted(step=2)))


def test_replaced_failed_sample_is_reported_but_not_in_ledger() -> None:
    data = DataWithDisk(replace(PLAN, num_spare=1, groups_per_step=1)).past_the_evaluation()
    data.handle(BatchWanted(step=1))
    (task,) = granted(data.sync(wants=3))
    first, *graded = answers([task])
    data.sync(wants=0, finished=(broken(first), *graded))
    (read,) = reported(data.handle(BatchWanted(step=2)))
    assert (read.trajectory.key, read.end) == (first.key, "failed")
    assert read.reason == "Another sample took its place. no sandbox" and data.counts["failed"] == 0


def test_sample_that_never_ended_is_reported_without_content() -> None:
    data = DataWithDisk(replace(PLAN, groups_per_step=1)).past_the_evaluation()
    data.handle(BatchWanted(step=1))
    hanging = granted(data.sync(wants=2))
    for _ in range(MAX_OWNERS):
        data.sync(wants=2)
        data.wait(data.plan.sample_deadline_s * (1 + 1 / CHECKS_PER_DEADLINE))
    assert data.counts["failed"] == 2
    data.sync(wants=0, finished=with_signal(answers(granted(data.sync(wants=2)))))
    [read] = reported(data.handle(BatchWanted(step=2)))
    assert read.trajectory.key.group == hanging[0].key and read.trajectory.content is None
    assert read.end == "failed" and "made no progress for" in read.reason
