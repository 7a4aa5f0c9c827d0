"""Ownership of groups: owners, leases, and the progress saved from a lost replica."""

from dataclasses import replace

from engine.pipeline.messages.to_data import ProgressStreamed, ReplicaGone
from engine.pipeline.messages.to_driver import FaultReported, RunBroken
from engine.pipeline.messages.to_rollout import WorkGranted
from engine.pipeline.records import GroupTask
from engine.policy.lineage import WeightsId
from tests.engine.pipeline.brain_builders import (
    PLAN,
    DataWithDisk,
    answers,
    granted,
    holding,
    keys_of,
    of,
    sample_progress,
    to_replica,
)

# ── owners and leases ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_unfinished_samples_of_a_lost_replica_are_regranted() -> None:
    data = DataWithDisk().past_the_evaluation()
    (first, _) = granted(data.sync(0, wants=4))
    data.sync(0, wants=0, finished=answers([first])[:1])
    data.handle(ReplicaGone(replica=0, incarnation=0))
    task = granted(data.sync(1, wants=4))[0]
    assert (task.key, task.samples) == (first.key, (1,))


def lose_twice(data: DataWithDisk, *, has_failed: bool, grows: bool = False) -> list[FaultReported]:
    """The faults reported when two replicas in turn are lost with the same two groups in hand."""
    for replica in (0, 1):
        tasks = granted(data.sync(replica, wants=4))
        finished = answers(tasks[:1])[:1] if grows and replica == 1 else ()
        data.sync(replica, wants=0, groups=holding(tasks), finished=finished)
        effects = data.handle(ReplicaGone(replica=replica, incarnation=0, has_failed=has_failed))
    return of(effects, FaultReported)


def test_prompt_in_hand_at_two_failures_is_excluded() -> None:
    data = DataWithDisk().past_the_evaluation()
    faults = lose_twice(data, has_failed=True)
    assert len(faults) == 2 and all("2 replicas failed with the prompt" in fault.message for fault in faults)
    assert data.counts["failed"] == 4, "each sample ends once"
    assert not {task.key.ordinal for task in granted(data.sync(2, wants=4))} & {0, 1}


def test_prompt_is_not_excluded_for_lost_processes_or_hosts() -> None:
    data = DataWithDisk().past_the_evaluation()
    assert lose_twice(data, has_failed=False) == []
    assert data.counts["failed"] == 0


def test_prompt_with_a_finished_sample_is_not_excluded() -> None:
    data = DataWithDisk().past_the_evaluation()
    assert len(lose_twice(data, has_failed=True, grows=True)) == 1
    assert data.counts["failed"] == 2


def test_run_whose_prompts_fail_replicas_ends_as_user_code() -> None:
    data = DataWithDisk(replace(PLAN, max_batch=80)).past_the_evaluation()
    broken: list[RunBroken] = []
    for replica in range(20):
        tasks = granted(data.sync(replica, wants=80))
        data.sync(replica, wants=0, groups=holding(tasks))
        broken += of(data.handle(ReplicaGone(replica=replica, incarnation=0, has_failed=True)), RunBroken)
    assert [each.failure_class for each in broken[:1]] == ["user_code"] and "with the prompt of" in broken[0].message


def test_a_successor_implies_that_its_predecessor_is_gone() -> None:
    data = DataWithDisk().past_the_evaluation()
    lost = granted(data.sync(0, wants=4))
    again = granted(data.sync(0, wants=4, incarnation=1))
    assert [task.key for task in again] == [task.key for task in lost]


def test_each_grant_has_a_higher_lease_than_all_before() -> None:
    data = DataWithDisk().past_the_evaluation()
    first = granted(data.sync(0, wants=4))
    data.handle(ReplicaGone(replica=0, incarnation=0))
    second = granted(data.sync(1, wants=8))
    leases = [task.lease for task in (*first, *second)]
    assert leases == sorted(set(leases))


def test_second_holder_of_a_group_is_revoked() -> None:
    data = DataWithDisk().past_the_evaluation()
    first = granted(data.sync(0, wants=4))
    data.handle(ReplicaGone(replica=0, incarnation=0))
    second = granted(data.sync(1, wants=4))
    assert [task.key for task in second] == [task.key for task in first]
    (to_slow,) = to_replica(data.sync(0, wants=0, groups=holding(first)), 0)
    assert to_slow.revoked == holding(first), "it was only slow"
    assert of(data.sync(1, wants=0, groups=holding(second)), WorkGranted) == []


def test_late_delivery_of_dead_replica_counts_but_gets_no_work() -> None:
    data = DataWithDisk().past_the_evaluation()
    tasks = granted(data.sync(0, wants=4))
    data.sync(0, incarnation=1, wants=0)
    assert granted(data.sync(0, incarnation=0, wants=8, finished=answers(tasks))) == []
    (batch,) = data.batch(1)
    assert len(keys_of(batch)) == 4


def test_every_delivery_is_confirmed_also_the_second() -> None:
    data = DataWithDisk().past_the_evaluation()
    samples = answers(granted(data.sync(wants=4)))[:1]
    for _ in range(2):
        (grant,) = of(data.sync(wants=0, finished=samples), WorkGranted)
        assert grant.taken == (samples[0].key,)


def test_overdue_sample_is_begun_elsewhere_then_given_up() -> None:
    data = DataWithDisk(replace(PLAN, sample_deadline_s=80.0)).past_the_evaluation()
    (stuck,) = granted(data.sync(0, wants=2))
    data.sync(1, wants=0)
    assert of(data.wait(100.0), FaultReported)[0].action == "restarted on another replica"
    assert stuck.key not in [task.key for task in granted(data.sync(0, wants=8, groups=holding([stuck])))]
    assert stuck.key in [task.key for task in granted(data.sync(1, wants=8))]
    effects = data.wait(100.0)
    assert "the samples were dropped" in [fault.action for fault in of(effects, FaultReported)]
    assert data.counts["failed"] == 2


def test_time_that_data_slept_through_ends_no_sample() -> None:
    data = DataWithDisk(replace(PLAN, sample_deadline_s=80.0)).past_the_evaluation()
    data.sync(0, wants=2)
    for _ in range(10):
        data.now += 450.0
        assert of(data.wait(4.0), FaultReported) == []
    assert of(data.wait(100.0), FaultReported)[0].action == "restarted on another replica", (
        "its own time counts as before"
    )


# ── partial responses ─────────────────────────────────────────────────────────────────────────────────────────────────


def with_a_partial(*, num_tokens: int = 7, replica: int = 0) -> tuple[DataWithDisk, GroupTask]:
    """One group on a replica that has reported progress of its first sample."""
    data = DataWithDisk().past_the_evaluation()
    (task,) = granted(data.sync(replica, wants=2))
    progress = (sample_progress(task.key, 0, num_tokens=num_tokens),)
    data.handle(ProgressStreamed(replica=replica, incarnation=0, progress=progress))
    return data, task


def test_group_that_grows_slowly_stays_where_it_is() -> None:
    data, task = with_a_partial(num_tokens=1)
    for num_tokens in range(2, 5):
        data.sync(wants=0, groups=holding([task]))
        progress = (sample_progress(task.key, 0, num_tokens=num_tokens),)
        data.handle(ProgressStreamed(replica=0, incarnation=0, progress=progress))
        assert of(data.wait(data.plan.sample_deadline_s), FaultReported) == []
    assert of(data.wait(data.plan.sample_deadline_s), FaultReported) != [], "it hangs from here on"


def test_unfinished_sample_of_lost_replica_resumes_elsewhere() -> None:
    data, task = with_a_partial()
    data.sync(1, wants=0, room=8)
    effects = data.handle(ReplicaGone(replica=0, incarnation=0))
    (again,) = granted(effects)
    assert again.key == task.key and again.exact == WeightsId(0, 0)
    assert again.progress == (sample_progress(task.key, 0, num_tokens=7),), "also on a replica that wants no fresh work"
    data.sync(1, wants=0, groups=holding([again]), finished=answers([again]))
    data.sync(1, wants=0, finished=answers(granted(data.sync(1, wants=2))))
    (batch,) = data.batch(1)
    assert (batch.buffer.num_tokens_saved, batch.buffer.num_tokens_lost) == (7, 0)


def test_sample_resumes_only_on_the_weights_that_began_it() -> None:
    data, task = with_a_partial()
    data.sync(1, version=0, wants=0, room=0)
    data.handle(ReplicaGone(replica=0, incarnation=0))
    assert task.key not in [fresh.key for fresh in granted(data.sync(2, version=1, wants=8))]
    assert [again.key for again in granted(data.sync(1, version=0, wants=0, room=2))] == [task.key]


def test_sample_begins_again_when_no_replica_holds_its_weights() -> None:
    data, task = with_a_partial()
    data.handle(ReplicaGone(replica=0, incarnation=0))
    again = granted(data.sync(1, version=1, wants=8))[0]
    assert (again.key, again.exact, again.progress) == (task.key, None, ())


def test_shorter_progress_of_a_sample_is_ignored() -> None:
    data, task = with_a_partial(num_tokens=7)
    data.handle(ProgressStreamed(replica=0, incarnation=0, progress=(sample_progress(task.key, 0, num_tokens=3),)))
    data.sync(1, wants=0, room=8)
    (again,) = granted(data.handle(ReplicaGone(replica=0, incarnation=0)))
    assert again.progress[0].num_tokens == 7


def test_progress_from_a_replica_without_ownership_is_ignored() -> None:
    data, task = with_a_partial(num_tokens=7)
    data.sync(1, wants=0, room=8)
    data.handle(ProgressStreamed(replica=1, incarnation=0, progress=(sample_progress(task.key, 0, num_tokens=90),)))
    (again,) = granted(data.handle(ReplicaGone(replica=0, incarnation=0)))
    assert again.progress[0].num_tokens == 7
