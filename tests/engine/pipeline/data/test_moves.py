"""Data's part of moves: one owner at every instant, whichever messages are late or lost."""

from dataclasses import replace

import pytest

from engine.pipeline.data.moves import RESERVE_WITHIN_S
from engine.pipeline.effects import Effect
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import ProgressStreamed, RepackPlanned, ReplicaGone
from engine.pipeline.messages.to_rollout import WorkGranted
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupTask, HeldGroup, Move, Reservation, VersionRun
from engine.policy.lineage import WeightsId
from tests.engine.pipeline.brain_builders import (
    BESIDE,
    DataWithDisk,
    answers,
    granted,
    holding,
    of,
    sample_progress,
    to_replica,
)

SOURCE, HOST = 0, 1


def move(*, source: int = SOURCE, host: int = HOST) -> RepackPlanned:
    wish = Move(source=source, source_incarnation=0, host=host, host_incarnation=0, weights=WeightsId(0, 0))
    return RepackPlanned(moves=(wish,))


class SourceAndHost(DataWithDisk):
    """Two replicas of version 0: one group runs on the source, the host has room."""

    def __init__(self) -> None:
        super().__init__()
        self.past_the_evaluation()
        (self.task,) = granted(self.sync(SOURCE, wants=2))
        self.sync(SOURCE, wants=0, groups=holding([self.task]))
        self.sync(HOST, wants=0, room=8)

    def planned(self) -> Reservation:
        (reservation,) = to_replica(self.handle(move()), HOST)[0].reserved
        return reservation

    def reserve(self, *reservations: Reservation) -> list[Effect]:
        """The host confirms its reservations."""
        reserved = tuple(HeldGroup(key=kept.key, lease=kept.lease, samples=()) for kept in reservations)
        return self.sync(HOST, wants=0, room=6, reserved=reserved)

    def source_says(self, *tasks: GroupTask) -> list[WorkGranted]:
        return to_replica(self.sync(SOURCE, wants=0, groups=holding(tasks)), SOURCE)

    def moved(self) -> GroupTask:
        (task,) = granted(self.reserve(self.planned()))
        return task


def test_source_owns_the_group_until_host_has_reserved_room() -> None:
    pair = SourceAndHost()
    reservation = pair.planned()
    assert (reservation.key, reservation.num_samples) == (pair.task.key, 2)
    assert pair.source_says(pair.task) == []
    assert granted(pair.sync(HOST, wants=0, room=8)) == []


def test_reservation_gives_host_the_lease_and_source_hands_over() -> None:
    pair = SourceAndHost()
    task = pair.moved()
    assert task.is_handed_over and task.lease > pair.task.lease and task.exact == WeightsId(0, 0)
    (grant,) = pair.source_says(pair.task)
    (order,) = grant.handovers
    assert (order.key, order.lease, order.host) == (task.key, task.lease, HOST) and grant.revoked == ()


def test_handover_order_repeats_until_source_drops_the_group() -> None:
    pair = SourceAndHost()
    pair.moved()
    assert all(pair.source_says(pair.task)[0].handovers for _ in range(2))
    assert pair.source_says() == []


def test_a_host_that_does_not_answer_in_time_changes_nothing() -> None:
    pair = SourceAndHost()
    reservation = pair.planned()
    pair.now += RESERVE_WITHIN_S + 0.1
    (cancelled,) = to_replica(pair.handle(Tick()), HOST)
    assert cancelled.reserved == ()
    assert granted(pair.reserve(reservation)) == [], "it comes too late"
    assert pair.source_says(pair.task) == []


def test_a_host_with_other_weights_by_now_gets_nothing() -> None:
    pair = SourceAndHost()
    pair.planned()
    assert granted(pair.sync(HOST, version=1, wants=0, room=8)) == []
    assert pair.source_says(pair.task) == []


def test_a_source_is_in_one_move_and_no_host_of_another() -> None:
    pair = SourceAndHost()
    pair.planned()
    pair.sync(2, wants=0, room=8)
    assert of(pair.handle(move(host=2)), WorkGranted) == []
    assert of(pair.handle(move(source=2, host=SOURCE)), WorkGranted) == []


def test_group_on_its_way_to_the_source_does_not_move() -> None:
    data = DataWithDisk().past_the_evaluation()
    granted(data.sync(SOURCE, wants=2))
    data.sync(HOST, wants=0, room=8)
    assert of(data.handle(move()), WorkGranted) == []


def test_moved_group_that_host_does_not_list_is_granted_again() -> None:
    pair = SourceAndHost()
    task = pair.moved()
    pair.now += 2.1
    (again,) = granted(pair.sync(HOST, wants=0, room=6))
    assert again.is_handed_over and again.lease == task.lease, "the source may still send it"
    pair.source_says()
    pair.now += 2.1
    (again,) = granted(pair.sync(HOST, wants=0, room=6))
    assert not again.is_handed_over, "the source no longer holds it: the host resumes from data's progress"


def test_host_keeps_the_group_if_source_dies_after_new_lease() -> None:
    pair = SourceAndHost()
    task = pair.moved()
    pair.handle(ReplicaGone(replica=SOURCE, incarnation=0))
    assert pair.sync(HOST, wants=0, room=6, groups=holding([task])) == [], "the host still owns it"


def test_source_regains_no_group_if_host_dies_after_new_lease() -> None:
    pair = SourceAndHost()
    pair.moved()
    pair.handle(ReplicaGone(replica=HOST, incarnation=0))
    (grant,) = pair.source_says(pair.task)
    assert grant.revoked == holding([pair.task]), "its lease is void: the host might still have begun"
    (again,) = granted(pair.sync(2, wants=2))
    assert again.key == pair.task.key


def test_host_lost_during_reservation_leaves_group_with_source() -> None:
    pair = SourceAndHost()
    pair.planned()
    pair.handle(ReplicaGone(replica=HOST, incarnation=0))
    assert pair.source_says(pair.task) == []


def test_sample_ended_on_source_after_new_lease_stops_host_copy() -> None:
    pair = SourceAndHost()
    task = pair.moved()
    pair.sync(SOURCE, wants=0, finished=answers([pair.task]))
    (grant,) = to_replica(pair.sync(HOST, wants=0, room=6, groups=holding([task])), HOST)
    assert grant.revoked == holding([task])


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_work_of_leaving_replica_moves_to_replica_with_room() -> None:
    pair = SourceAndHost()
    effects = pair.sync(SOURCE, wants=0, groups=holding([pair.task]), is_leaving=True)
    (reservation,) = to_replica(effects, HOST)[0].reserved
    (task,) = granted(pair.reserve(reservation))
    assert task.key == pair.task.key and task.is_handed_over


def test_leaving_replica_gets_no_work_and_is_released_when_empty() -> None:
    pair = SourceAndHost()
    pair.sync(HOST, wants=0, room=0)
    (grant,) = to_replica(
        pair.sync(SOURCE, wants=0, is_leaving=True, groups=holding([pair.task]), finished=answers([pair.task])), SOURCE
    )
    assert grant.taken and not grant.is_released
    (grant,) = to_replica(pair.sync(SOURCE, wants=8, is_leaving=True), SOURCE)
    assert grant.is_released and grant.tasks == ()


def test_samples_stopped_by_leaving_replica_resume_elsewhere() -> None:
    pair = SourceAndHost()
    stopped = tuple(sample_progress(pair.task.key, sample, num_tokens=4) for sample in (0, 1))
    effects = pair.sync(SOURCE, wants=0, is_leaving=True, progress=stopped)
    (task,) = granted(effects)
    assert task.key == pair.task.key and task.progress == stopped


# ── weights side by side ──────────────────────────────────────────────────────────────────────────────────────────────

V0, V1 = WeightsId(0, 0), WeightsId(0, 1)


def two_versions(plan: Plan = BESIDE) -> tuple[DataWithDisk, GroupTask, GroupTask]:
    """A source that runs one group on version 0 and one on version 1; a host that holds both."""
    data = DataWithDisk(plan).past_the_evaluation()
    (old,) = granted(data.sync(SOURCE, wants=2))
    (new,) = granted(data.sync(SOURCE, version=1, wants=2, older=(V0,), groups=holding([old])))
    data.sync(SOURCE, version=1, wants=0, older=(V0,), groups=(*holding([old]), *holding([new], version=1)))
    data.sync(HOST, version=1, wants=0, room=8, older=(V0,))
    return data, old, new


def test_move_takes_only_groups_on_its_weights() -> None:
    data, old, _ = two_versions()
    (reservation,) = to_replica(data.handle(move()), HOST)[0].reserved
    assert (reservation.key, reservation.weights) == (old.key, V0)


def test_host_without_the_weights_of_the_move_gets_nothing() -> None:
    data, _, _ = two_versions()
    data.sync(HOST, version=1, wants=0, room=8)
    assert of(data.handle(move()), WorkGranted) == []


def test_group_of_lost_replica_resumes_on_its_older_weights() -> None:
    data, old, _ = two_versions()
    data.handle(ProgressStreamed(replica=SOURCE, incarnation=0, progress=(sample_progress(old.key, 0, num_tokens=7),)))
    tasks = {task.key: task for task in granted(data.handle(ReplicaGone(replica=SOURCE, incarnation=0)))}
    assert tasks[old.key].exact == V0 and tasks[old.key].progress[0].num_tokens == 7


CAPPED = replace(BESIDE, schedule=replace(BESIDE.schedule, age_cap=1))


@pytest.mark.parametrize("plan", [BESIDE, CAPPED])
def test_mixed_sample_resumes_on_fresh_weights_or_begins_again(
    plan: Plan,
) -> None:
    data, old, _ = two_versions(plan)
    runs = (VersionRun(weights=V0, num_tokens=4), VersionRun(weights=V1, num_tokens=3))
    mixed = replace(sample_progress(old.key, 0, num_tokens=7), runs=runs)
    data.handle(ProgressStreamed(replica=SOURCE, incarnation=0, progress=(mixed,)))
    data.handle(ReplicaGone(replica=SOURCE, incarnation=0))
    tasks = {task.key: task for task in granted(data.sync(HOST, version=1, wants=8, older=(V0,)))}
    progress = tasks[old.key].progress
    assert [each.num_tokens for each in progress] == ([7] if plan is CAPPED else [])
    assert plan is BESIDE or (tasks[old.key].exact == V1 and progress[0].runs == runs)
