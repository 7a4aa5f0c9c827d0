"""Data: prompts out, groups in, batches to the trainer, one end for each."""

from dataclasses import replace
from typing import Any

from engine.pipeline.data import DataBrain
from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages import (
    BatchReady,
    BatchWanted,
    ReplicaGone,
    ReplicaSynced,
    Tick,
    TrainingEnded,
    VersionReleased,
    WorkGranted,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress, GroupTask, SampleKey, Trajectory
from engine.pipeline.reports import EvaluationReported, FaultReported, LedgerReported, PartFinished, RunBroken
from engine.policy.schedule import PRESETS, schedule_for
from engine.spec.job import ScheduleSpec

PLAN = Plan(
    schedule=PRESETS["laminar"],
    steps=3,
    groups_per_step=2,
    group_size=2,
    checkpoint_every=10,
    evaluation_prompts=2,
    evaluate_every=0,
    max_batch=8,
)


class Room:
    """A data brain and replicas that answer at once."""

    def __init__(self, plan: Plan = PLAN, **options: Any) -> None:
        self.brain = DataBrain(plan, **options)
        self.serial = 0
        self.now = 0.0

    def sync(self, replica: int = 0, *, version: int = 0, wants: int = 8, **fields: Any) -> list[Effect]:
        self.serial += 1
        message = ReplicaSynced(
            replica=replica,
            incarnation=fields.pop("incarnation", 0),
            serial=fields.pop("serial", self.serial),
            version=version,
            wants=wants,
            holds=fields.pop("holds", ()),
            finished=fields.pop("finished", ()),
            **fields,
        )
        return self.brain.handle(message, self.now)

    def past_the_evaluation(self) -> "Room":
        tasks = granted(self.sync())
        self.sync(finished=answers(tasks), wants=0)
        return self


def granted(effects: list[Effect]) -> list[GroupTask]:
    return [task for message in sent(effects, WorkGranted) for task in message.tasks]


def sent(effects: list[Effect], kind: type) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def answers(tasks: list[GroupTask], *, version: int = 0, failure: str = "") -> tuple[Trajectory, ...]:
    return tuple(
        Trajectory(
            key=SampleKey(group=task.key, sample=sample), version=version, reward=1.0, num_tokens=5, failure=failure
        )
        for task in tasks
        for sample in task.samples
    )


def test_the_evaluation_before_training_is_complete_before_training_starts() -> None:
    room = Room()
    tasks = granted(room.sync(wants=1))
    assert [task.key.split for task in tasks] == ["held_out"]
    second = granted(room.sync(wants=8, finished=answers(tasks)))
    assert [task.key.split for task in second] == ["held_out"]
    effects = room.sync(wants=8, finished=answers(second))
    assert sent(effects, EvaluationReported) == [
        EvaluationReported(version=0, num_prompts=2, reward_mean=1.0, length_mean=5.0)
    ]
    assert sent(effects, VersionReleased) == [VersionReleased(version=0)]
    assert {task.key.split for task in granted(effects)} == {"train"}


def test_no_more_is_dealt_than_the_replica_has_room_for() -> None:
    tasks = granted(Room().past_the_evaluation().sync(wants=5))
    assert [task.samples for task in tasks] == [(0, 1), (0, 1)]


def test_a_group_larger_than_a_replica_is_dealt_to_an_empty_one() -> None:
    room = Room(replace(PLAN, group_size=20)).past_the_evaluation()
    assert [len(task.samples) for task in granted(room.sync(wants=8))] == [20]
    assert granted(room.sync(wants=8)) == []


def test_what_is_on_its_way_counts_as_room_taken() -> None:
    room = Room().past_the_evaluation()
    assert len(granted(room.sync(wants=4))) == 2
    assert granted(room.sync(wants=4, holds=())) == []


def test_work_is_shared_by_who_has_most_room() -> None:
    room = Room().past_the_evaluation()
    room.sync(0, wants=0)
    room.sync(1, wants=0)
    first = granted(room.sync(0, wants=8))
    second = granted(room.sync(1, wants=8))
    assert len(first) == 4 and len(second) == 2, "three steps' worth are open, no more"


def test_groups_reach_the_trainer_whole_and_a_step_always_gets_the_same_batch() -> None:
    room = Room().past_the_evaluation()
    room.brain.handle(BatchWanted(step=1), 0.0)
    tasks = granted(room.sync(wants=8))
    samples = answers(tasks)
    assert sent(room.sync(wants=0, finished=samples[:3]), BatchReady) == []
    (batch,) = sent(room.sync(wants=0, finished=samples[3:4]), BatchReady)
    assert [len(group.trajectories) for group in batch.groups] == [2, 2]
    assert sent(room.brain.handle(BatchWanted(step=1), 0.0), BatchReady) == [batch]


def test_a_sample_delivered_twice_counts_once() -> None:
    room = Room().past_the_evaluation()
    room.brain.handle(BatchWanted(step=1), 0.0)
    samples = answers(granted(room.sync(wants=8)))
    room.sync(wants=0, finished=samples[:2])
    room.sync(wants=0, finished=samples[:2])
    (batch,) = sent(room.sync(wants=0, finished=(*samples[:2], *samples[2:4])), BatchReady)
    keys = [trajectory.key for group in batch.groups for trajectory in group.trajectories]
    assert len(set(keys)) == 4


def test_every_delivery_is_confirmed_also_the_second() -> None:
    room = Room().past_the_evaluation()
    samples = answers(granted(room.sync(wants=4)))[:1]
    for _ in range(2):
        (grant,) = sent(room.sync(wants=0, finished=samples), WorkGranted)
        assert grant.taken == (samples[0].key,)


def test_a_dead_replicas_unfinished_samples_go_to_another_and_its_finished_ones_stay() -> None:
    room = Room().past_the_evaluation()
    (first, _) = granted(room.sync(0, wants=4))
    room.sync(0, wants=0, finished=answers([first])[:1])
    room.brain.handle(ReplicaGone(replica=0, incarnation=0), 1.0)
    tasks = granted(room.sync(1, wants=4))
    assert tasks[0] == GroupTask(key=first.key, samples=(1,))


def test_a_successor_implies_that_its_predecessor_is_gone() -> None:
    room = Room().past_the_evaluation()
    lost = granted(room.sync(0, wants=4))
    assert granted(room.sync(0, wants=4, incarnation=1)) == lost


def test_the_dead_replicas_late_delivery_still_counts_but_its_wishes_do_not() -> None:
    room = Room().past_the_evaluation()
    tasks = granted(room.sync(0, wants=4))
    room.sync(0, incarnation=1, wants=0)
    assert granted(room.sync(0, incarnation=0, wants=8, finished=answers(tasks))) == []
    room.brain.handle(BatchWanted(step=1), 0.0)
    assert room.brain._batch is not None


def test_a_grant_that_was_lost_is_granted_again() -> None:
    room = Room().past_the_evaluation()
    tasks = granted(room.sync(wants=4))
    room.now = 5.0
    assert granted(room.sync(wants=4, holds=())) == tasks


def test_an_old_sync_that_comes_late_changes_nothing() -> None:
    room = Room().past_the_evaluation()
    room.sync(wants=0, serial=100)
    assert granted(room.sync(wants=8, serial=50)) == []


def test_stale_groups_are_dropped_with_a_reason_and_replaced() -> None:
    plan = replace(PLAN, schedule=schedule_for(ScheduleSpec(name="laminar", max_staleness=0)))
    room = Room(plan).past_the_evaluation()
    room.brain.handle(BatchWanted(step=1), 0.0)
    tasks = granted(room.sync(wants=8))
    room.sync(wants=0, finished=answers(tasks))
    room.brain.handle(BatchWanted(step=2), 0.0)
    stale = granted(room.sync(version=1, wants=8))
    effects = room.sync(version=1, wants=8, finished=answers(stale, version=0))
    assert sent(effects, BatchReady) == []
    assert len(granted(effects)) == len(stale)
    assert room.brain._counts() == {"trained": 4, "filtered": 0, "dropped_stale": 4, "failed": 0, "open": 4}


def test_a_group_with_an_ungraded_sample_fails_whole() -> None:
    room = Room().past_the_evaluation()
    tasks = granted(room.sync(wants=4))
    room.sync(wants=0, finished=answers(tasks[:1], failure="timeout")[:1])
    assert room.brain._counts()["failed"] == 2


def test_a_grader_that_fails_on_most_groups_breaks_the_run() -> None:
    room = Room(replace(PLAN, max_batch=80)).past_the_evaluation()
    broken: list[RunBroken] = []
    for _ in range(10):
        tasks = granted(room.sync(wants=80))
        broken += sent(room.sync(wants=0, finished=answers(tasks, failure="no sandbox")), RunBroken)
    assert broken and broken[0].failure_class == "reward" and "no sandbox" in broken[0].message


def test_the_last_evaluation_ends_the_run_and_the_ledger_adds_up() -> None:
    room = Room().past_the_evaluation()
    for step in (1, 2, 3):
        room.brain.handle(BatchWanted(step=step), 0.0)
        tasks = granted(room.sync(version=step - 1, wants=4))
        room.sync(version=step - 1, wants=0, finished=answers(tasks, version=step - 1))
    room.brain.handle(TrainingEnded(version=3), 0.0)
    tasks = granted(room.sync(version=3, wants=8))
    assert {task.exact_version for task in tasks} == {3}
    effects = room.sync(version=3, wants=8, finished=answers(tasks, version=3))
    assert sent(effects, PartFinished) == [PartFinished(part="data")]
    assert sent(effects, LedgerReported)[-1].counts == {
        "trained": 12, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0,
    }  # fmt: skip


def test_an_evaluation_in_between_sends_an_idle_replica_to_its_version() -> None:
    room = Room(replace(PLAN, evaluate_every=1)).past_the_evaluation()
    room.brain.handle(BatchWanted(step=1), 0.0)
    room.sync(wants=0, finished=answers(granted(room.sync(wants=4))))
    room.brain.handle(BatchWanted(step=2), 0.0)
    (grant,) = sent(room.sync(version=0, wants=0), WorkGranted)
    assert grant.evaluate_at == 1 and grant.tasks == ()
    tasks = granted(room.sync(version=1, wants=8, evaluate_at=1))
    assert [task.exact_version for task in tasks[:2]] == [1, 1]


def test_an_evaluation_whose_version_is_lost_is_answered_by_newer_weights_and_says_so() -> None:
    room = Room()
    tasks = granted(room.sync(version=4, wants=8, missing_version=0))
    assert {task.exact_version for task in tasks} == {None}
    effects = room.sync(version=4, wants=0, finished=answers(tasks, version=4))
    assert sent(effects, FaultReported)[0].action == "2 answers are by newer weights"


def test_a_resumed_job_trains_on_none_of_what_was_trained() -> None:
    progress = DataProgress(ended=((0, 2), (3, 5)), ledger=(("trained", 8),))
    room = Room(start_step=2, progress=progress)
    tasks = granted(room.sync(version=2, wants=8))
    assert [task.key.ordinal for task in tasks] == [2, 5]
    assert room.brain._counts() == {"trained": 8, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 4}


def test_a_tick_alone_does_nothing() -> None:
    assert Room().brain.handle(Tick(), 1.0) == []
