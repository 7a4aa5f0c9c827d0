"""What data never forgets: nothing is said before it is on disk, a log is a state, a dead trainer's steps come back.

The room's disk is a list in memory; a restart is a new brain from that list.
"""

from dataclasses import replace

import pytest

from engine.pipeline.data import commit
from engine.pipeline.data.brain import LISTEN_S, DataBrain, Recovered
from engine.pipeline.effects import Persist
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import BatchWanted, Persisted, ReplicaGone, ResumedFrom, TrainingEnded
from engine.pipeline.messages.to_driver import EvaluationReported, FaultReported
from engine.pipeline.messages.to_rollout import WorkGranted
from engine.pipeline.messages.to_trainer import BatchReady
from engine.policy.lineage import Lineage, WeightsId
from engine.policy.schedule import schedule_for
from engine.spec.job import ScheduleSpec
from tests.engine.pipeline.brain_builders import PLAN, Room, answers, granted, holding, keys_of, of, to_replica

# ── nothing before it is on disk ──────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_acknowledged_before_it_is_on_disk() -> None:
    room = Room().past_the_evaluation()
    samples = answers(granted(room.sync(wants=4)))
    room.is_disk_slow = True
    effects = room.sync(wants=0, finished=samples)
    (persist,) = effects
    assert isinstance(persist, Persist) and len(persist.records) == 4
    (grant,) = of(room.handle(Persisted(serial=persist.serial)), WorkGranted)
    assert grant.taken == tuple(sample.key for sample in samples)


def test_a_batch_is_not_sent_before_it_is_on_disk() -> None:
    room = Room().past_the_evaluation()
    room.handle(BatchWanted(step=1))
    samples = answers(granted(room.sync(wants=4)))
    room.is_disk_slow = True
    effects = room.sync(wants=0, finished=samples)
    assert of(effects, BatchReady) == [] and room.batch(1) == [], "not even when it is asked for again"
    (persist,) = of(effects, Persist)
    batches = of(room.handle(Persisted(serial=persist.serial)), BatchReady)
    assert [batch.step for batch in batches] == [1, 1]


def test_messages_keep_their_order_behind_a_slow_disk() -> None:
    room = Room().past_the_evaluation()
    first, second = answers(granted(room.sync(wants=4)))[:2]
    room.is_disk_slow = True
    (before,) = of(room.sync(wants=0, finished=(first,)), Persist)
    (after,) = of(room.sync(wants=0, finished=(second,)), Persist)
    assert room.sync(wants=0, finished=(first,)) == [], "known, and still behind the others"
    (grant,) = of(room.handle(Persisted(serial=before.serial)), WorkGranted)
    assert grant.taken == (first.key,)
    later = of(room.handle(Persisted(serial=after.serial)), WorkGranted)
    assert [grant.taken for grant in later] == [(second.key,), (first.key,)]


# ── a new brain from the log ──────────────────────────────────────────────────────────────────────────────────────────


def a_life() -> Room:
    """Everything that a log can hold, short of a fork."""
    plan = replace(
        PLAN,
        schedule=schedule_for(ScheduleSpec(name="laminar", max_staleness=1), weight_slots=1),
        evaluate_every=1,
        steps=4,
    )
    room = Room(plan).past_the_evaluation()
    room.train(1)
    room.handle(BatchWanted(step=2, checkpointed=1))
    evaluated = granted(room.sync(version=1, wants=2))
    room.sync(version=1, wants=0, finished=answers(evaluated, version=1))
    failing, *others = granted(room.sync(version=1, wants=8))
    room.sync(version=1, wants=0, finished=answers([failing], version=1, failure="no sandbox"))
    room.sync(version=1, wants=0, finished=answers(others, version=1)[:3])
    return room


def test_replaying_a_log_gives_the_same_state() -> None:
    room = a_life()
    before = room.brain.state.snapshot()
    assert room.restart().brain.state.snapshot() == before


def test_a_snapshot_gives_the_same_state() -> None:
    room = a_life()
    before = room.brain.state.snapshot()
    recovered = Recovered(snapshot=before, records=(), serial=room.disk.serial)
    assert DataBrain(room.plan, incarnation=1, recovered=recovered).state.snapshot() == before


@pytest.mark.parametrize("length", [1, 3, 7])
def test_a_snapshot_with_the_records_after_it_gives_the_same_state(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "RECORDS_PER_SNAPSHOT", length)
    room = a_life()
    before = room.brain.state.snapshot()
    assert room.disk.snapshot is not None and len(room.disk.records) < length
    assert room.restart().brain.state.snapshot() == before


def test_a_step_gets_the_very_same_batch_from_a_brain_that_was_rebuilt() -> None:
    room = Room().past_the_evaluation()
    batch = room.train(1)
    room.sync(wants=0, finished=answers(granted(room.sync(wants=8))))
    (again,) = room.restart().batch(1)
    assert (again.groups, again.progress) == (batch.groups, batch.progress)


def test_what_was_acknowledged_survives() -> None:
    room = Room().past_the_evaluation()
    samples = answers(granted(room.sync(wants=4)))
    room.sync(wants=0, finished=samples[:3])
    room.restart().handle(BatchWanted(step=1))
    (batch,) = of(room.sync(wants=0, finished=samples[3:]), BatchReady)
    assert set(keys_of(batch)) == {sample.key for sample in samples}


def test_what_is_delivered_to_a_brain_that_never_heard_of_it_counts() -> None:
    room = Room().past_the_evaluation()
    tasks = granted(room.sync(wants=4))
    room.restart().handle(BatchWanted(step=1))
    effects = room.sync(wants=0, groups=holding(tasks), finished=answers(tasks))
    assert len(keys_of(of(effects, BatchReady)[0])) == 4


def test_a_new_data_brain_listens_before_it_grants() -> None:
    room = Room().past_the_evaluation()
    tasks = granted(room.sync(0, wants=4))
    room.restart()
    assert granted(room.sync(1, wants=8)) == []
    (to_worker,) = to_replica(room.sync(0, wants=0, groups=holding(tasks)), 0) or [WorkGranted(incarnation=0)]
    assert to_worker.revoked == (), "it goes on with what it works on"
    room.now += LISTEN_S
    fresh = granted(room.handle(Tick()))
    assert fresh and not {task.key for task in fresh} & {task.key for task in tasks}
    assert min(task.lease for task in fresh) > max(task.lease for task in tasks)


def test_of_two_that_work_on_a_group_a_new_data_brain_keeps_the_higher_lease() -> None:
    room = Room().past_the_evaluation()
    old = granted(room.sync(0, wants=2))
    room.handle(ReplicaGone(replica=0, incarnation=0))
    new = granted(room.sync(1, wants=2))
    room.restart()
    assert to_replica(room.sync(1, wants=0, groups=holding(new)), 1) == []
    (to_slow,) = to_replica(room.sync(0, wants=0, groups=holding(old)), 0)
    assert to_slow.revoked == holding(old)


def test_an_evaluation_is_reported_again_after_a_recovery() -> None:
    room = Room().past_the_evaluation().restart()
    assert [report.weights for report in of(room.handle(Tick()), EvaluationReported)] == [WeightsId(0, 0)]
    assert of(room.handle(Tick()), EvaluationReported) == []


# ── a new trainer ─────────────────────────────────────────────────────────────────────────────────────────────────────


def forked(room: Room, *, at: BatchReady, wants: int) -> list[BatchReady]:
    """The trainer died, and its successor began from the checkpoint of this step."""
    resumed = ResumedFrom(step=at.step, progress=at.progress)
    return room.batch(wants, epoch=1, checkpointed=at.step, resumed=resumed)


def test_what_was_trained_after_the_checkpoint_is_trained_again() -> None:
    room = Room().past_the_evaluation()
    kept, undone = room.train(1), room.train(2)
    room.handle(BatchWanted(step=3))
    (again,) = forked(room, at=kept, wants=2)
    assert keys_of(again) == keys_of(undone)
    assert (again.epoch, again.lineage) == (1, Lineage(((1, 1),)))
    assert room.counts["trained"] == 4 and room.counts["rolled_back"] == 4


def test_a_batch_that_was_in_training_comes_back() -> None:
    room = Room().past_the_evaluation()
    kept, unfinished = room.train(1), room.train(2)
    (again,) = forked(room, at=kept, wants=2)
    assert keys_of(again) == keys_of(unfinished) and "rolled_back" not in room.counts


def test_after_a_fork_nothing_counts_as_trained_that_the_checkpoint_does_not_know() -> None:
    room = Room(replace(PLAN, steps=5)).past_the_evaluation()
    first = room.train(1)
    undone = [room.train(2), room.train(3, checkpointed=2)]
    room.handle(BatchWanted(step=4, checkpointed=2))
    (batch,) = forked(room, at=first, wants=2)  # the newer one did not verify, and what went into it is gone
    assert room.counts["trained"] == 4 and room.counts["rolled_back"] == 8
    again = {*keys_of(batch), *keys_of(room.train(3, epoch=1))}
    assert again == {key for batch in undone for key in keys_of(batch)}, "before prompts that were never begun"


def test_what_a_dead_trainer_says_is_ignored() -> None:
    room = Room().past_the_evaluation()
    kept = room.train(1)
    room.train(2)
    forked(room, at=kept, wants=2)
    before = room.brain.state.snapshot()
    assert room.batch(3, epoch=0) == [] and room.batch(2, epoch=0) == []
    room.handle(TrainingEnded(weights=WeightsId(0, 2), checkpointed=2))
    assert room.brain.state.snapshot() == before


def test_a_fork_that_is_heard_twice_is_one() -> None:
    room = Room().past_the_evaluation()
    kept = room.train(1)
    room.train(2)
    first = forked(room, at=kept, wants=2)
    assert [(batch.step, batch.groups) for batch in forked(room, at=kept, wants=2)] == [
        (batch.step, batch.groups) for batch in first
    ]
    assert len(of(room.handle(Tick()), FaultReported)) == 0
    assert room.brain.state.lineage == Lineage(((1, 1),))


def test_samples_of_a_dead_branch_that_are_too_stale_are_generated_again() -> None:
    plan = replace(PLAN, schedule=schedule_for(ScheduleSpec(name="laminar", max_staleness=0), weight_slots=1))
    room = Room(plan).past_the_evaluation()
    kept, undone = room.train(1), room.train(2)
    room.handle(BatchWanted(step=3))
    tasks = granted(room.sync(version=2, wants=4))
    (batch,) = forked(room, at=kept, wants=2)
    assert keys_of(batch) == keys_of(undone), "version 1 wrote them, and it lives"
    late = room.sync(version=2, wants=0, groups=holding(tasks), finished=answers(tasks, version=2))
    assert to_replica(late, 0)[0].taken, "confirmed, so that it is not said for ever"
    room.handle(BatchWanted(step=3, epoch=1, checkpointed=1))
    again = granted(room.sync(version=2, epoch=1, wants=4, incarnation=1))
    assert {(task.key, task.samples) for task in again} == {(task.key, task.samples) for task in tasks}


def test_what_was_lost_with_a_trainer_stays_lost_after_data_began_anew() -> None:
    room = Room().past_the_evaluation()
    kept = room.train(1)
    room.train(2)
    (batch,) = forked(room, at=kept, wants=2)
    before = room.brain.state.snapshot()
    (again,) = room.restart().batch(2, epoch=1, checkpointed=1)
    assert room.brain.state.snapshot() == before
    assert (again.groups, again.epoch, again.lineage) == (batch.groups, batch.epoch, batch.lineage)
