"""Who works on which group: owners, leases, and what is saved of a replica that is lost."""

from dataclasses import replace

from engine.pipeline.messages.to_data import ProgressStreamed, ReplicaGone
from engine.pipeline.messages.to_driver import FaultReported
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
    said,
    to_replica,
)

# ── owners and leases ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dead_replicas_unfinished_samples_go_to_another_and_its_finished_ones_stay() -> None:
    data = DataWithDisk().past_the_evaluation()
    (first, _) = granted(data.sync(0, wants=4))
    data.sync(0, wants=0, finished=answers([first])[:1])
    data.handle(ReplicaGone(replica=0, incarnation=0))
    task = granted(data.sync(1, wants=4))[0]
    assert (task.key, task.samples) == (first.key, (1,))


def test_a_successor_implies_that_its_predecessor_is_gone() -> None:
    data = DataWithDisk().past_the_evaluation()
    lost = granted(data.sync(0, wants=4))
    again = granted(data.sync(0, wants=4, incarnation=1))
    assert [task.key for task in again] == [task.key for task in lost]


def test_each_grant_has_a_lease_with_a_higher_number_than_all_before() -> None:
    data = DataWithDisk().past_the_evaluation()
    first = granted(data.sync(0, wants=4))
    data.handle(ReplicaGone(replica=0, incarnation=0))
    second = granted(data.sync(1, wants=8))
    leases = [task.lease for task in (*first, *second)]
    assert leases == sorted(set(leases))


def test_of_two_replicas_that_both_think_a_group_is_theirs_one_is_told_that_it_is_not() -> None:
    data = DataWithDisk().past_the_evaluation()
    first = granted(data.sync(0, wants=4))
    data.handle(ReplicaGone(replica=0, incarnation=0))
    second = granted(data.sync(1, wants=4))
    assert [task.key for task in second] == [task.key for task in first]
    (to_slow,) = to_replica(data.sync(0, wants=0, groups=holding(first)), 0)
    assert to_slow.revoked == holding(first), "it was only slow"
    assert of(data.sync(1, wants=0, groups=holding(second)), WorkGranted) == []


def test_the_dead_replicas_late_delivery_still_counts_but_its_wishes_do_not() -> None:
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


def test_a_sample_that_does_not_end_in_time_is_begun_elsewhere_and_then_given_up() -> None:
    data = DataWithDisk(replace(PLAN, sample_deadline_s=80.0)).past_the_evaluation()
    (stuck,) = granted(data.sync(0, wants=2))
    data.sync(1, wants=0)
    assert of(data.wait(100.0), FaultReported)[0].action == "begun again elsewhere"
    assert stuck.key not in [task.key for task in granted(data.sync(0, wants=8, groups=holding([stuck])))]
    assert stuck.key in [task.key for task in granted(data.sync(1, wants=8))]
    effects = data.wait(100.0)
    assert "the samples were given up" in [fault.action for fault in of(effects, FaultReported)]
    assert data.counts["failed"] == 2


def test_data_that_was_away_itself_ends_no_sample_for_that() -> None:
    data = DataWithDisk(replace(PLAN, sample_deadline_s=80.0)).past_the_evaluation()
    data.sync(0, wants=2)
    for _ in range(10):
        data.now += 450.0
        assert of(data.wait(4.0), FaultReported) == []
    assert of(data.wait(100.0), FaultReported)[0].action == "begun again elsewhere", "its own time counts as before"


# ── partial responses ─────────────────────────────────────────────────────────────────────────────────────────────────


def with_a_partial(*, num_tokens: int = 7, replica: int = 0) -> tuple[DataWithDisk, GroupTask]:
    """One group on a replica that has said something of its first sample."""
    data = DataWithDisk().past_the_evaluation()
    (task,) = granted(data.sync(replica, wants=2))
    progress = (said(task.key, 0, num_tokens=num_tokens),)
    data.handle(ProgressStreamed(replica=replica, incarnation=0, progress=progress))
    return data, task


def test_group_that_grows_slowly_stays_where_it_is() -> None:
    data, task = with_a_partial(num_tokens=1)
    for num_tokens in range(2, 5):
        data.sync(wants=0, groups=holding([task]))
        progress = (said(task.key, 0, num_tokens=num_tokens),)
        data.handle(ProgressStreamed(replica=0, incarnation=0, progress=progress))
        assert of(data.wait(data.plan.sample_deadline_s), FaultReported) == []
    assert of(data.wait(data.plan.sample_deadline_s), FaultReported) != [], "it hangs from here on"


def test_what_an_unfinished_sample_said_goes_on_elsewhere_when_its_replica_is_lost() -> None:
    data, task = with_a_partial()
    data.sync(1, wants=0, room=8)
    effects = data.handle(ReplicaGone(replica=0, incarnation=0))
    (again,) = granted(effects)
    assert again.key == task.key and again.exact == WeightsId(0, 0)
    assert again.progress == (said(task.key, 0, num_tokens=7),), "also where nothing fresh is wanted"
    data.sync(1, wants=0, groups=holding([again]), finished=answers([again]))
    data.sync(1, wants=0, finished=answers(granted(data.sync(1, wants=2))))
    (batch,) = data.batch(1)
    assert (batch.buffer.num_tokens_saved, batch.buffer.num_tokens_lost) == (7, 0)


def test_a_sample_goes_on_only_on_a_replica_that_holds_the_weights_that_began_it() -> None:
    data, task = with_a_partial()
    data.sync(1, version=0, wants=0, room=0)
    data.handle(ReplicaGone(replica=0, incarnation=0))
    assert task.key not in [fresh.key for fresh in granted(data.sync(2, version=1, wants=8))]
    assert [again.key for again in granted(data.sync(1, version=0, wants=0, room=2))] == [task.key]


def test_when_no_replica_holds_its_weights_any_more_a_sample_begins_anew() -> None:
    data, task = with_a_partial()
    data.handle(ReplicaGone(replica=0, incarnation=0))
    again = granted(data.sync(1, version=1, wants=8))[0]
    assert (again.key, again.exact, again.progress) == (task.key, None, ())


def test_a_shorter_account_of_a_sample_is_an_older_one() -> None:
    data, task = with_a_partial(num_tokens=7)
    data.handle(ProgressStreamed(replica=0, incarnation=0, progress=(said(task.key, 0, num_tokens=3),)))
    data.sync(1, wants=0, room=8)
    (again,) = granted(data.handle(ReplicaGone(replica=0, incarnation=0)))
    assert again.progress[0].num_tokens == 7


def test_what_another_than_the_owner_says_of_a_sample_is_ignored() -> None:
    data, task = with_a_partial(num_tokens=7)
    data.sync(1, wants=0, room=8)
    data.handle(ProgressStreamed(replica=1, incarnation=0, progress=(said(task.key, 0, num_tokens=90),)))
    (again,) = granted(data.handle(ReplicaGone(replica=0, incarnation=0)))
    assert again.progress[0].num_tokens == 7
