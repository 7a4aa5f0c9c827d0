"""Who works on which group: owners, leases, and what is saved of a replica that is lost."""

from dataclasses import replace

from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import ProgressStreamed, ReplicaGone
from engine.pipeline.messages.to_driver import FaultReported
from engine.pipeline.messages.to_rollout import WorkGranted
from engine.pipeline.records import GroupTask
from engine.policy.lineage import WeightsId
from tests.engine.pipeline.brain_builders import PLAN, Room, answers, granted, holding, keys_of, of, said, to_replica

# ── owners and leases ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dead_replicas_unfinished_samples_go_to_another_and_its_finished_ones_stay() -> None:
    room = Room().past_the_evaluation()
    (first, _) = granted(room.sync(0, wants=4))
    room.sync(0, wants=0, finished=answers([first])[:1])
    room.handle(ReplicaGone(replica=0, incarnation=0))
    task = granted(room.sync(1, wants=4))[0]
    assert (task.key, task.samples) == (first.key, (1,))


def test_a_successor_implies_that_its_predecessor_is_gone() -> None:
    room = Room().past_the_evaluation()
    lost = granted(room.sync(0, wants=4))
    again = granted(room.sync(0, wants=4, incarnation=1))
    assert [task.key for task in again] == [task.key for task in lost]


def test_each_grant_has_a_lease_with_a_higher_number_than_all_before() -> None:
    room = Room().past_the_evaluation()
    first = granted(room.sync(0, wants=4))
    room.handle(ReplicaGone(replica=0, incarnation=0))
    second = granted(room.sync(1, wants=8))
    leases = [task.lease for task in (*first, *second)]
    assert leases == sorted(set(leases))


def test_of_two_replicas_that_both_think_a_group_is_theirs_one_is_told_that_it_is_not() -> None:
    room = Room().past_the_evaluation()
    first = granted(room.sync(0, wants=4))
    room.handle(ReplicaGone(replica=0, incarnation=0))
    second = granted(room.sync(1, wants=4))
    assert [task.key for task in second] == [task.key for task in first]
    (to_slow,) = to_replica(room.sync(0, wants=0, groups=holding(first)), 0)
    assert to_slow.revoked == holding(first), "it was only slow"
    assert of(room.sync(1, wants=0, groups=holding(second)), WorkGranted) == []


def test_the_dead_replicas_late_delivery_still_counts_but_its_wishes_do_not() -> None:
    room = Room().past_the_evaluation()
    tasks = granted(room.sync(0, wants=4))
    room.sync(0, incarnation=1, wants=0)
    assert granted(room.sync(0, incarnation=0, wants=8, finished=answers(tasks))) == []
    (batch,) = room.batch(1)
    assert len(keys_of(batch)) == 4


def test_every_delivery_is_confirmed_also_the_second() -> None:
    room = Room().past_the_evaluation()
    samples = answers(granted(room.sync(wants=4)))[:1]
    for _ in range(2):
        (grant,) = of(room.sync(wants=0, finished=samples), WorkGranted)
        assert grant.taken == (samples[0].key,)


def test_a_sample_that_does_not_end_in_time_is_begun_elsewhere_and_then_given_up() -> None:
    room = Room(replace(PLAN, sample_deadline_s=80.0)).past_the_evaluation()
    (stuck,) = granted(room.sync(0, wants=2))
    room.sync(1, wants=0)
    room.now = 100.0
    assert of(room.handle(Tick()), FaultReported)[0].action == "begun anew elsewhere"
    assert stuck.key not in [task.key for task in granted(room.sync(0, wants=8, groups=holding([stuck])))]
    assert stuck.key in [task.key for task in granted(room.sync(1, wants=8))]
    room.now = 200.0
    effects = room.handle(Tick())
    assert "the group was given up" in [fault.action for fault in of(effects, FaultReported)]
    assert room.counts["failed"] == 2


# ── partial responses ─────────────────────────────────────────────────────────────────────────────────────────────────


def with_a_partial(*, num_tokens: int = 7, replica: int = 0) -> tuple[Room, GroupTask]:
    """One group on a replica that has said something of its first sample."""
    room = Room().past_the_evaluation()
    (task,) = granted(room.sync(replica, wants=2))
    progress = (said(task.key, 0, num_tokens=num_tokens),)
    room.handle(ProgressStreamed(replica=replica, incarnation=0, progress=progress))
    return room, task


def test_what_an_unfinished_sample_said_goes_on_elsewhere_when_its_replica_is_lost() -> None:
    room, task = with_a_partial()
    room.sync(1, wants=0, room=8)
    effects = room.handle(ReplicaGone(replica=0, incarnation=0))
    (again,) = granted(effects)
    assert again.key == task.key and again.exact == WeightsId(0, 0)
    assert again.progress == (said(task.key, 0, num_tokens=7),), "also where nothing fresh is wanted"
    room.sync(1, wants=0, groups=holding([again]), finished=answers([again]))
    room.sync(1, wants=0, finished=answers(granted(room.sync(1, wants=2))))
    (batch,) = room.batch(1)
    assert (batch.buffer.num_tokens_saved, batch.buffer.num_tokens_lost) == (7, 0)


def test_a_sample_goes_on_only_on_a_replica_that_holds_the_weights_that_began_it() -> None:
    room, task = with_a_partial()
    room.sync(1, version=0, wants=0, room=0)
    room.handle(ReplicaGone(replica=0, incarnation=0))
    assert task.key not in [fresh.key for fresh in granted(room.sync(2, version=1, wants=8))]
    assert [again.key for again in granted(room.sync(1, version=0, wants=0, room=2))] == [task.key]


def test_when_no_replica_holds_its_weights_any_more_a_sample_begins_anew() -> None:
    room, task = with_a_partial()
    room.handle(ReplicaGone(replica=0, incarnation=0))
    again = granted(room.sync(1, version=1, wants=8))[0]
    assert (again.key, again.exact, again.progress) == (task.key, None, ())


def test_a_shorter_account_of_a_sample_is_an_older_one() -> None:
    room, task = with_a_partial(num_tokens=7)
    room.handle(ProgressStreamed(replica=0, incarnation=0, progress=(said(task.key, 0, num_tokens=3),)))
    room.sync(1, wants=0, room=8)
    (again,) = granted(room.handle(ReplicaGone(replica=0, incarnation=0)))
    assert again.progress[0].num_tokens == 7


def test_what_another_than_the_owner_says_of_a_sample_is_ignored() -> None:
    room, task = with_a_partial(num_tokens=7)
    room.sync(1, wants=0, room=8)
    room.handle(ProgressStreamed(replica=1, incarnation=0, progress=(said(task.key, 0, num_tokens=90),)))
    (again,) = granted(room.handle(ReplicaGone(replica=0, incarnation=0)))
    assert again.progress[0].num_tokens == 7
