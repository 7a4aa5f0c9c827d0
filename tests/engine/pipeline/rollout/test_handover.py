"""A handover in every order of its messages: the host resumes once, from the source's state or from data's progress."""

from dataclasses import replace
from itertools import permutations

import pytest

from engine.pipeline.effects import HandOverSequences, ResumeSequences, StartSequences
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import ReplicaSynced
from engine.pipeline.messages.to_rollout import SequencesHandedOver, TrajectoriesEnded, WorkGranted
from engine.pipeline.records import GroupKey, GroupTask, HandOver, HeldGroup, Reservation, SampleKey, Trajectory
from engine.pipeline.rollout.brain import RolloutBrain
from engine.pipeline.rollout.workload import AWAIT_S
from engine.policy.lineage import WeightsId
from tests.engine.pipeline.brain_builders import PLAN, of, sample_progress
from tests.engine.pipeline.data.data_world import Body, DataWorld
from tests.engine.pipeline.rollout.test_brain import ready, running

KEY, V0 = GroupKey(ordinal=0), WeightsId(0, 0)
KNOWN = (sample_progress(KEY, 0, num_tokens=3),)
SENT = (sample_progress(KEY, 0, num_tokens=6), sample_progress(KEY, 1, num_tokens=4))
TOLD = WorkGranted(
    incarnation=0,
    tasks=(GroupTask(key=KEY, samples=(0, 1), lease=9, exact=V0, progress=KNOWN, is_handed_over=True),),
)
HANDED = SequencesHandedOver(incarnation=0, key=KEY, lease=9, weights=V0, progress=SENT, payload=None)


# ── the host ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", sorted(set(permutations([0, 0, 1, 1]))))
def test_host_resumes_once_for_any_order_of_messages(order: tuple[int, ...]) -> None:
    host = ready()
    effects = [effect for at, which in enumerate(order) for effect in host.handle((TOLD, HANDED)[which], 1.0 + at)]
    assert of(effects, ResumeSequences) == [ResumeSequences(handed=HANDED)]
    assert of(effects, StartSequences) == []


def test_lost_handover_begins_from_datas_progress() -> None:
    host = ready()
    host.handle(TOLD, 1.0)
    assert of(host.handle(Tick(), 1.0 + AWAIT_S - 0.1), StartSequences) == []
    (start,) = of(host.handle(Tick(), 1.0 + AWAIT_S), StartSequences)
    assert start.tasks[0].progress == KNOWN and start.tasks[0].samples == (0, 1)
    assert of(host.handle(HANDED, 8.0), ResumeSequences) == [], "the handover is too late"


def test_data_may_cancel_an_awaited_handover_early() -> None:
    host = ready()
    host.handle(TOLD, 1.0)
    alone = GroupTask(key=KEY, samples=(0, 1), lease=9, exact=V0, progress=KNOWN)
    (start,) = of(host.handle(WorkGranted(incarnation=0, tasks=(alone,)), 2.0), StartSequences)
    assert start.tasks[0].samples == (0, 1)
    assert of(host.handle(HANDED, 2.1), ResumeSequences) == []


def test_handover_for_other_incarnation_or_weights_is_ignored() -> None:
    for wrong in (
        SequencesHandedOver(incarnation=1, key=KEY, lease=9, weights=V0, progress=SENT, payload=None),
        SequencesHandedOver(incarnation=0, key=KEY, lease=9, weights=WeightsId(0, 1), progress=SENT, payload=None),
        SequencesHandedOver(incarnation=0, key=KEY, lease=8, weights=V0, progress=SENT, payload=None),
    ):
        host = ready()
        host.handle(TOLD, 1.0)
        assert of(host.handle(wrong, 1.1), ResumeSequences) == []


def test_reserved_and_awaited_samples_take_room() -> None:
    host = ready()
    reservation = Reservation(key=KEY, lease=9, num_samples=2, weights=V0)
    (sync,) = of(host.handle(WorkGranted(incarnation=0, reserved=(reservation,)), 1.0), ReplicaSynced)
    assert sync.room == 6 and [held.lease for held in sync.reserved] == [9]
    host.handle(TOLD, 1.1)
    (sync,) = of(host.handle(Tick(), 4.0), ReplicaSynced)
    assert sync.room == 6 and [held.lease for held in sync.groups] == [9] and sync.reserved == ()


# ── the source ────────────────────────────────────────────────────────────────────────────────────────────────────────


def order_to(source: RolloutBrain, now: float, *, lease: int = 9) -> list[HandOverSequences]:
    order = HandOver(key=KEY, lease=lease, host=1, host_incarnation=0)
    return of(source.handle(WorkGranted(incarnation=0, handovers=(order,)), now), HandOverSequences)


def test_source_hands_over_once_for_two_orders() -> None:
    source = running()
    (handover,) = order_to(source, 1.1)
    assert handover.group == HeldGroup(key=KEY, lease=9, samples=(0, 1), weights=V0) and handover.weights == V0
    assert order_to(source, 1.2) == []


def test_order_under_a_lower_lease_is_void() -> None:
    assert order_to(running(), 1.1, lease=4) == []


def test_source_restarts_no_handed_over_sample_under_older_lease() -> None:
    source = running()
    order_to(source, 1.1)
    old = GroupTask(key=KEY, samples=(0, 1), lease=5)
    assert of(source.handle(WorkGranted(incarnation=0, tasks=(old,)), 1.2), StartSequences) == []


def test_source_delivers_a_sample_that_ends_during_handover() -> None:
    source = running()
    order_to(source, 1.1)
    ended = Trajectory(key=SampleKey(group=KEY, sample=0), weights=WeightsId(0, 0), reward=0.0, num_tokens=3)
    (sync,) = of(source.handle(TrajectoriesEnded(trajectories=(ended,)), 1.2), ReplicaSynced)
    assert sync.finished == (ended,)


# ── data and both ─────────────────────────────────────────────────────────────────────────────────────────────────────


def world_with_a_move() -> tuple[DataWorld, Body, Body]:
    """The host has confirmed the reservation; the message is still on its way."""
    world = DataWorld(replace(PLAN, steps=1), num_replicas=2)
    while not any(key.group.evaluation is None for _, key in world.running()):
        for body, key in world.running():
            world.finish(body, key)
        world.tick(2.1)
        world.calm()
    world.tick(2.1)
    world.calm()
    source = next(body for body in world.bodies.values() if body.running)
    host = next(body for body in world.bodies.values() if body is not source)
    [weights] = source.in_use
    world.wish_move(source.owner[0], host.owner[0], weights)
    world.deliver(-1)
    world.calm()
    world.tick(0.06)
    return world, source, host


def test_the_samples_go_on_on_the_host_and_the_step_is_trained() -> None:
    world, source, host = world_with_a_move()
    moved = set(source.running)
    world.calm()
    world.tick(2.1)
    world.calm()
    assert moved and moved <= set(host.running) and world.num_moved == len(moved)
    assert not moved & set(source.running)
    world.settle(rounds=60)
    assert world.is_finished


def test_a_lost_handover_costs_tokens_and_no_sample() -> None:
    world, source, host = world_with_a_move()
    moved = set(source.running)
    for _ in range(10):
        while world.posted or world.unwritten:
            world.posted = [post for post in world.posted if not isinstance(post[1], SequencesHandedOver)]
            if world.posted:
                world.deliver(0)
            while world.unwritten:
                world.write()
        world.tick(1.1)
    assert moved <= set(host.running) and world.num_moved == 0
    world.settle(rounds=60)
    assert world.is_finished
