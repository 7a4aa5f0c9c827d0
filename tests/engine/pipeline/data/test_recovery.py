"""Durability of data: no message before its records are on disk, replay of the log, forks after a trainer's death.

The disk is a list in memory; a restart is a new brain from that list.
"""

from dataclasses import replace

import pytest

from engine.pipeline.data import commit
from engine.pipeline.data.brain import LISTEN_S, DataBrain, Recovered
from engine.pipeline.data.resending import BATCH_LOST_AFTER_S
from engine.pipeline.effects import Persist
from engine.pipeline.journal import StepTrained
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import BatchWanted, Persisted, ReplicaGone, ResumedFrom, TrainingEnded
from engine.pipeline.messages.to_driver import EvaluationReported, FaultReported
from engine.pipeline.messages.to_rollout import WorkGranted
from engine.pipeline.messages.to_trainer import BatchReady
from engine.policy.lineage import Lineage, WeightsId
from engine.policy.schedule import schedule_for
from engine.spec.job import ScheduleSpec
from tests.engine.pipeline.brain_builders import PLAN, DataWithDisk, answers, granted, holding, keys_of, of, to_replica

# ── nothing before it is on disk ──────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_acknowledged_before_it_is_on_disk() -> None:
    data = DataWithDisk().past_the_evaluation()
    samples = answers(granted(data.sync(wants=4)))
    data.is_disk_slow = True
    effects = data.sync(wants=0, finished=samples)
    (persist,) = effects
    assert isinstance(persist, Persist) and len(persist.records) == 4
    (grant,) = of(data.handle(Persisted(serial=persist.serial)), WorkGranted)
    assert grant.taken == tuple(sample.key for sample in samples)


def test_a_batch_is_not_sent_before_it_is_on_disk() -> None:
    data = DataWithDisk().past_the_evaluation()
    data.handle(BatchWanted(step=1))
    samples = answers(granted(data.sync(wants=4)))
    data.is_disk_slow = True
    effects = data.sync(wants=0, finished=samples)
    assert of(effects, BatchReady) == [] and data.batch(1) == [], "not even when it is requested again"
    (persist,) = of(effects, Persist)
    batches = of(data.handle(Persisted(serial=persist.serial)), BatchReady)
    assert [batch.step for batch in batches] == [1]


def test_messages_keep_their_order_behind_a_slow_disk() -> None:
    data = DataWithDisk().past_the_evaluation()
    first, second = answers(granted(data.sync(wants=4)))[:2]
    data.is_disk_slow = True
    (before,) = of(data.sync(wants=0, finished=(first,)), Persist)
    (after,) = of(data.sync(wants=0, finished=(second,)), Persist)
    assert data.sync(wants=0, finished=(first,)) == [], "known, and still behind the others"
    (grant,) = of(data.handle(Persisted(serial=before.serial)), WorkGranted)
    assert grant.taken == (first.key,)
    later = of(data.handle(Persisted(serial=after.serial)), WorkGranted)
    assert [grant.taken for grant in later] == [(second.key,), (first.key,)]


# ── a new brain from the log ──────────────────────────────────────────────────────────────────────────────────────────


def a_life() -> DataWithDisk:
    """Everything that a log can hold, short of a fork."""
    plan = replace(
        PLAN,
        schedule=schedule_for(ScheduleSpec(name="laminar", max_staleness=1), weight_slots=1),
        evaluate_every=1,
        steps=4,
    )
    data = DataWithDisk(plan).past_the_evaluation()
    data.train(1)
    data.handle(BatchWanted(step=2, checkpointed=1))
    evaluated = granted(data.sync(version=1, wants=2))
    data.sync(version=1, wants=0, finished=answers(evaluated, version=1))
    failing, *others = granted(data.sync(version=1, wants=8))
    data.sync(version=1, wants=0, finished=answers([failing], version=1, failure="no sandbox"))
    data.sync(version=1, wants=0, finished=answers(others, version=1)[:3])
    return data


def test_replaying_a_log_gives_the_same_state() -> None:
    data = a_life()
    before = data.brain.state.snapshot()
    assert data.restart().brain.state.snapshot() == before


def test_a_snapshot_gives_the_same_state() -> None:
    data = a_life()
    before = data.brain.state.snapshot()
    recovered = Recovered(snapshot=before, records=(), serial=data.disk.serial)
    assert DataBrain(data.plan, incarnation=1, recovered=recovered).state.snapshot() == before


@pytest.mark.parametrize("length", [1, 3, 7])
def test_snapshot_and_later_records_give_the_same_state(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "RECORDS_PER_SNAPSHOT", length)
    monkeypatch.setattr(commit, "RECORDS_PER_TRAJECTORY", 0)
    data = a_life()
    before = data.brain.state.snapshot()
    assert data.disk.snapshot is not None and len(data.disk.records) < length
    assert data.restart().brain.state.snapshot() == before


def test_a_snapshot_of_much_waits_for_twice_as_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "RECORDS_PER_SNAPSHOT", 1)
    snapshot = a_life().brain.state.snapshot()
    log = commit.Commit(lambda: snapshot, last_serial=0)
    waits: list[int] = [0]
    while len(waits) < 4:
        log.record(StepTrained(step=1))
        (persist,) = of(log.after([]), Persist)
        waits[-1] += 1
        waits += [0] * (persist.snapshot is not None)
    assert snapshot.num_trajectories > 1
    assert waits[:3] == [1, 2 * snapshot.num_trajectories, 2 * snapshot.num_trajectories]


def test_rebuilt_brain_gives_a_step_the_same_batch() -> None:
    data = DataWithDisk().past_the_evaluation()
    batch = data.train(1)
    data.sync(wants=0, finished=answers(granted(data.sync(wants=8))))
    (again,) = data.restart().batch(1)
    assert (again.groups, again.progress) == (batch.groups, batch.progress)


def test_acknowledged_trajectories_survive_a_restart() -> None:
    data = DataWithDisk().past_the_evaluation()
    samples = answers(granted(data.sync(wants=4)))
    data.sync(wants=0, finished=samples[:3])
    data.restart().handle(BatchWanted(step=1))
    (batch,) = of(data.sync(wants=0, finished=samples[3:]), BatchReady)
    assert set(keys_of(batch)) == {sample.key for sample in samples}


def test_delivery_that_a_restarted_brain_does_not_know_counts() -> None:
    data = DataWithDisk().past_the_evaluation()
    tasks = granted(data.sync(wants=4))
    data.restart().handle(BatchWanted(step=1))
    effects = data.sync(wants=0, groups=holding(tasks), finished=answers(tasks))
    assert len(keys_of(of(effects, BatchReady)[0])) == 4


def test_a_new_data_brain_listens_before_it_grants() -> None:
    data = DataWithDisk().past_the_evaluation()
    tasks = granted(data.sync(0, wants=4))
    data.restart()
    assert granted(data.sync(1, wants=8)) == []
    (to_worker,) = to_replica(data.sync(0, wants=0, groups=holding(tasks)), 0) or [WorkGranted(incarnation=0)]
    assert to_worker.revoked == (), "it keeps its work"
    data.now += LISTEN_S
    fresh = granted(data.handle(Tick()))
    assert fresh and not {task.key for task in fresh} & {task.key for task in tasks}
    assert min(task.lease for task in fresh) > max(task.lease for task in tasks)


def test_new_data_brain_keeps_the_holder_with_the_higher_lease() -> None:
    data = DataWithDisk().past_the_evaluation()
    old = granted(data.sync(0, wants=2))
    data.handle(ReplicaGone(replica=0, incarnation=0))
    new = granted(data.sync(1, wants=2))
    data.restart()
    assert to_replica(data.sync(1, wants=0, groups=holding(new)), 1) == []
    (to_slow,) = to_replica(data.sync(0, wants=0, groups=holding(old)), 0)
    assert to_slow.revoked == holding(old)


def test_an_evaluation_is_reported_again_after_a_recovery() -> None:
    data = DataWithDisk().past_the_evaluation().restart()
    assert [report.weights for report in of(data.handle(Tick()), EvaluationReported)] == [WeightsId(0, 0)]
    assert of(data.handle(Tick()), EvaluationReported) == []


# ── a new trainer ─────────────────────────────────────────────────────────────────────────────────────────────────────


def forked(data: DataWithDisk, *, at: BatchReady, wants: int) -> list[BatchReady]:
    """The trainer died, and its successor began from the checkpoint of this step."""
    resumed = ResumedFrom(step=at.step, progress=at.progress)
    return data.batch(wants, epoch=1, checkpointed=at.step, resumed=resumed)


def test_steps_after_the_checkpoint_are_trained_again() -> None:
    data = DataWithDisk().past_the_evaluation()
    kept, undone = data.train(1), data.train(2)
    data.handle(BatchWanted(step=3))
    (again,) = forked(data, at=kept, wants=2)
    assert keys_of(again) == keys_of(undone)
    assert (again.epoch, again.lineage) == (1, Lineage(((1, 1),)))
    assert data.counts["trained"] == 4 and data.counts["rolled_back"] == 4


def test_a_batch_that_was_in_training_comes_back() -> None:
    data = DataWithDisk().past_the_evaluation()
    kept, unfinished = data.train(1), data.train(2)
    (again,) = forked(data, at=kept, wants=2)
    assert keys_of(again) == keys_of(unfinished) and "rolled_back" not in data.counts


def test_after_fork_only_steps_in_checkpoint_count_as_trained() -> None:
    data = DataWithDisk(replace(PLAN, steps=5)).past_the_evaluation()
    first = data.train(1)
    undone = [data.train(2), data.train(3, checkpointed=2)]
    data.handle(BatchWanted(step=4, checkpointed=2))
    (batch,) = forked(data, at=first, wants=2)  # the newer one did not verify, and what went into it is gone
    assert data.counts["trained"] == 4 and data.counts["rolled_back"] == 8
    again = {*keys_of(batch), *keys_of(data.train(3, epoch=1))}
    assert again == {key for batch in undone for key in keys_of(batch)}, "before prompts that were never begun"


def test_messages_of_a_dead_trainer_are_ignored() -> None:
    data = DataWithDisk().past_the_evaluation()
    kept = data.train(1)
    data.train(2)
    forked(data, at=kept, wants=2)
    before = data.brain.state.snapshot()
    assert data.batch(3, epoch=0) == [] and data.batch(2, epoch=0) == []
    data.handle(TrainingEnded(weights=WeightsId(0, 2), checkpointed=2))
    assert data.brain.state.snapshot() == before


def test_fork_reported_twice_happens_once() -> None:
    data = DataWithDisk().past_the_evaluation()
    kept = data.train(1)
    data.train(2)
    first = forked(data, at=kept, wants=2)
    data.wait(BATCH_LOST_AFTER_S)
    assert [(batch.step, batch.groups) for batch in forked(data, at=kept, wants=2)] == [
        (batch.step, batch.groups) for batch in first
    ]
    assert len(of(data.handle(Tick()), FaultReported)) == 0
    assert data.brain.state.lineage == Lineage(((1, 1),))


def test_too_stale_samples_of_dead_branch_are_generated_again() -> None:
    plan = replace(PLAN, schedule=schedule_for(ScheduleSpec(name="laminar", max_staleness=0), weight_slots=1))
    data = DataWithDisk(plan).past_the_evaluation()
    kept, undone = data.train(1), data.train(2)
    data.handle(BatchWanted(step=3))
    tasks = granted(data.sync(version=2, wants=4))
    (batch,) = forked(data, at=kept, wants=2)
    assert keys_of(batch) == keys_of(undone), "version 1 wrote them, and it lives"
    late = data.sync(version=2, wants=0, groups=holding(tasks), finished=answers(tasks, version=2))
    assert to_replica(late, 0)[0].taken, "confirmed, so that it is not delivered forever"
    data.handle(BatchWanted(step=3, epoch=1, checkpointed=1))
    again = granted(data.sync(version=2, epoch=1, wants=4, incarnation=1))
    assert {(task.key, task.samples) for task in again} == {(task.key, task.samples) for task in tasks}


def test_fork_survives_a_restart_of_data() -> None:
    data = DataWithDisk().past_the_evaluation()
    kept = data.train(1)
    data.train(2)
    (batch,) = forked(data, at=kept, wants=2)
    before = data.brain.state.snapshot()
    (again,) = data.restart().batch(2, epoch=1, checkpointed=1)
    assert data.brain.state.snapshot() == before
    assert (again.groups, again.epoch, again.lineage) == (batch.groups, batch.epoch, batch.lineage)
