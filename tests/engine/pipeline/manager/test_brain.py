"""The manager: a part that is gone is noticed, its work given back, a successor started."""

from dataclasses import replace

import pytest

from engine.pipeline.effects import Effect, EndPart, Send, StartPart
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.addresses import DATA, TRAINER, Address, relay_address, rollout_address
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import RepackPlanned, ReplicaGone
from engine.pipeline.messages.to_driver import FaultReported, ResizeReported, RunBroken
from engine.pipeline.messages.to_manager import (
    LeaveOrdered,
    PartLost,
    PartReported,
    ReplicaLeft,
    ReplicaReported,
    ResizeOrdered,
    WeightsUpdated,
)
from engine.pipeline.messages.to_rollout import LeaveRequested
from engine.policy.lineage import WeightsId
from engine.policy.recovery import Patience
from engine.policy.schedule import PRESETS
from tests.engine.pipeline.brain_builders import PLAN, of

FIRST, SECOND, THIRD = map(rollout_address, range(3))
WHOLE = {FIRST: 0, SECOND: 0, relay_address(0): 0, relay_address(1): 0, DATA: 0, TRAINER: 0}


def manager(num_replicas: int = 2) -> ManagerBrain:
    return ManagerBrain(num_replicas=num_replicas, now=0.0)


def beat(
    replica: int = 0, incarnation: int = 0, *, version: int = 0, num_running: int = 0, kv_used: float = 0.0
) -> ReplicaReported:
    return ReplicaReported(
        replica=replica,
        incarnation=incarnation,
        weights=WeightsId(0, version),
        num_running=num_running,
        kv_used=kv_used,
        num_tokens=0,
    )


def lost(part: Address = FIRST, incarnation: int = 0) -> PartLost:
    return PartLost(part=part, incarnation=incarnation, reason="killed")


def after_six_losses(brain: ManagerBrain, part: Address) -> list[Effect]:
    """All that the manager did, with every successor dying at once."""
    done: list[Effect] = []
    now = 0.0
    for incarnation in range(6):
        done += brain.handle(lost(part, incarnation), now)
        for _ in range(20):
            now += 1.0
            done += brain.handle(Tick(), now)
    return done


# ── losses ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dead_replica_is_ended_given_back_and_replaced_at_once() -> None:
    effects = manager().handle(lost(), 5.0)
    assert of(effects, EndPart) == [EndPart(part=FIRST, incarnation=0)]
    assert of(effects, ReplicaGone) == [ReplicaGone(replica=0, incarnation=0)]
    assert of(effects, StartPart) == [StartPart(part=FIRST, incarnation=1)]
    assert "went back" in of(effects, FaultReported)[0].action


def test_any_part_is_ended_and_replaced_and_only_a_replica_is_told_to_data() -> None:
    for part in (relay_address(1), DATA, TRAINER):
        effects = ManagerBrain(incarnations=WHOLE, now=0.0).handle(lost(part), 5.0)
        assert of(effects, EndPart) == [EndPart(part=part, incarnation=0)]
        assert of(effects, StartPart) == [StartPart(part=part, incarnation=1)]
        assert of(effects, ReplicaGone) == [] and of(effects, RunBroken) == []


def test_an_incarnation_is_given_up_once_and_for_ever() -> None:
    brain = manager()
    brain.handle(lost(), 5.0)
    assert brain.handle(lost(), 5.1) == []
    assert brain.handle(beat(0, incarnation=0), 5.2) == []
    effects = brain.handle(lost(incarnation=1), 6.0)
    assert of(effects, EndPart) == [EndPart(part=FIRST, incarnation=1)]
    assert of(brain.handle(Tick(), 10.0), StartPart) == [StartPart(part=FIRST, incarnation=2)]


def test_a_part_that_was_silent_for_long_is_treated_as_dead_and_a_slow_starter_is_not() -> None:
    brain = manager()
    brain.handle(beat(0), 1.0)
    assert brain.handle(Tick(), 20.0) == []
    effects = brain.handle(Tick(), 22.0)
    assert of(effects, EndPart) == [EndPart(part=FIRST, incarnation=0)]
    assert "no heartbeat for 21 s" in of(effects, FaultReported)[0].message


def test_a_part_that_never_starts_is_treated_as_dead() -> None:
    assert of(manager(1).handle(Tick(), 301.0), EndPart) == [EndPart(part=FIRST, incarnation=0)]


def test_a_trainer_may_take_ten_minutes_for_its_first_step() -> None:
    brain = ManagerBrain(incarnations={TRAINER: 0, DATA: 0}, now=0.0, patience=Patience())
    for part in (TRAINER, DATA):
        brain.handle(PartReported(part=part, incarnation=0), 1.0)
    brain.handle(WeightsUpdated(weights=WeightsId(0, 20)), 1.0)  # those that it begins with
    assert of(brain.handle(Tick(), 100.0), EndPart) == [EndPart(part=DATA, incarnation=0)]
    assert EndPart(part=TRAINER, incarnation=0) in of(brain.handle(Tick(), 602.0), EndPart)


@pytest.mark.parametrize(("slowest_s", "allowed_s"), [(0.2, 60.0), (30.0, 150.0), (300.0, 600.0)])
def test_a_trainer_that_has_trained_may_be_silent_for_five_of_its_slowest_steps(
    slowest_s: float, allowed_s: float
) -> None:
    brain = ManagerBrain(incarnations={TRAINER: 0}, now=0.0, patience=Patience())
    for at in (1.0, 1.0 + slowest_s):
        brain.handle(PartReported(part=TRAINER, incarnation=0), at)
    for version in (20, 21):
        brain.handle(WeightsUpdated(weights=WeightsId(0, version)), 1.0 + slowest_s)
    since = 1.0 + slowest_s
    assert of(brain.handle(Tick(), since + allowed_s - 0.5), EndPart) == []
    assert of(brain.handle(Tick(), since + allowed_s + 0.5), EndPart) == [EndPart(part=TRAINER, incarnation=0)]


def test_a_heartbeat_of_a_dead_incarnation_keeps_nobody_alive() -> None:
    brain = manager(1)
    brain.handle(lost(), 1.0)
    brain.handle(beat(0, incarnation=1), 2.0)
    brain.handle(beat(0, incarnation=0), 20.0)
    assert of(brain.handle(Tick(), 23.0), EndPart) == [EndPart(part=FIRST, incarnation=1)]


def test_data_is_told_again_until_the_successor_is_heard() -> None:
    brain = manager()
    brain.handle(lost(), 5.0)
    assert of(brain.handle(Tick(), 8.0), ReplicaGone) == [ReplicaGone(replica=0, incarnation=0)]
    brain.handle(beat(0, incarnation=1), 9.0)
    assert of(brain.handle(Tick(), 12.0), ReplicaGone) == []


def test_a_replica_that_keeps_dying_is_given_up_and_the_others_go_on() -> None:
    done = after_six_losses(manager(), FIRST)
    assert "given up" in of(done, FaultReported)[-1].action
    assert [start.incarnation for start in of(done, StartPart)] == [1, 2, 3, 4, 5]
    assert of(done, RunBroken) == []


def test_the_run_breaks_with_a_reason_when_a_kind_of_part_is_gone_and_will_not_come_back() -> None:
    for part, others in ((FIRST, {}), (DATA, {FIRST: 0}), (TRAINER, {FIRST: 0})):
        done = after_six_losses(ManagerBrain(incarnations={part: 0, **others}, now=0.0), part)
        broken = of(done, RunBroken)[0]
        assert broken.failure_class == "infrastructure" and "is dead and was given up" in broken.message


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_replica_whose_device_is_taken_away_is_asked_to_leave_until_it_has() -> None:
    brain = manager()
    order = LeaveOrdered(replica=0, within_s=30.0)
    assert of(brain.handle(order, 1.0), LeaveRequested) == [LeaveRequested(incarnation=0, within_s=30.0)]
    assert brain.handle(order, 1.5) == []
    brain.handle(beat(0), 4.0)
    assert of(brain.handle(Tick(), 5.0), LeaveRequested) == [LeaveRequested(incarnation=0, within_s=26.0)]


def test_a_replica_that_has_left_is_ended_and_not_replaced() -> None:
    brain = manager()
    brain.handle(LeaveOrdered(replica=0, within_s=30.0), 1.0)
    effects = brain.handle(ReplicaLeft(replica=0, incarnation=0), 9.0)
    assert of(effects, EndPart) == [EndPart(part=FIRST, incarnation=0)]
    assert of(effects, ReplicaGone) == [ReplicaGone(replica=0, incarnation=0)]
    assert brain.handle(ReplicaLeft(replica=0, incarnation=0), 9.1) == []
    assert brain.handle(lost(), 10.0) == [] and brain.handle(beat(1), 399.0) == []
    assert of(brain.handle(Tick(), 400.0), StartPart) == []


def test_a_replica_that_dies_while_it_leaves_is_not_replaced_and_its_work_goes_back() -> None:
    brain = manager()
    brain.handle(LeaveOrdered(replica=0, within_s=30.0), 1.0)
    effects = brain.handle(lost(), 2.0)
    assert of(effects, ReplicaGone) and of(effects, StartPart) == [] and of(effects, RunBroken) == []


# ── a new manager, and tails ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_manager_learns_who_is_there_from_what_the_parts_report() -> None:
    brain = ManagerBrain(incarnations=WHOLE | {FIRST: 3}, now=1_000.0)
    assert of(brain.handle(Tick(), 1_010.0), EndPart) == [], "whom it has not heard yet it does not judge"
    brain.handle(beat(0, incarnation=3), 1_011.0)
    effects = brain.handle(lost(incarnation=3), 1_012.0)
    assert of(effects, StartPart) == [StartPart(part=FIRST, incarnation=4)]


def with_tails() -> ManagerBrain:
    brain = ManagerBrain(num_replicas=2, now=0.0, repacker=Repacker.for_plan(PLAN))
    for replica in (0, 1):
        brain.handle(beat(replica, num_running=2, kv_used=0.2 + 0.1 * replica), 2.0)
    return brain


def test_new_weights_are_the_moment_to_look_for_tails() -> None:
    (plan,) = of(with_tails().handle(WeightsUpdated(weights=WeightsId(0, 1)), 3.0), RepackPlanned)
    (move,) = plan.moves
    assert (move.source, move.host, move.weights) == (0, 1, WeightsId(0, 0))


def test_a_dead_replica_is_in_no_plan() -> None:
    brain = with_tails()
    brain.handle(lost(SECOND), 2.5)
    assert of(brain.handle(WeightsUpdated(weights=WeightsId(0, 1)), 3.0), RepackPlanned) == []


def test_who_is_in_a_plan_is_in_no_other_before_it_has_been_measured_again() -> None:
    brain = with_tails()
    brain.handle(WeightsUpdated(weights=WeightsId(0, 1)), 3.0)
    assert of(brain.handle(Tick(), 9.0), RepackPlanned) == []
    for replica, kv_used in ((0, 0.3), (1, 0.4)):
        brain.handle(beat(replica, num_running=3, kv_used=kv_used), 10.0)
    assert of(brain.handle(Tick(), 15.0), RepackPlanned)


def test_a_schedule_without_repack_moves_nothing() -> None:
    assert Repacker.for_plan(replace(PLAN, schedule=PRESETS["sync"])) is None


# ── size ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def resized(brain: ManagerBrain, replicas: int, now: float) -> list[Effect]:
    return brain.handle(ResizeOrdered(replicas=replicas, within_s=30.0), now)


def test_a_smaller_size_is_reached_when_the_last_replica_has_left_and_not_before() -> None:
    brain = manager(num_replicas=3)
    effects = resized(brain, 1, 1.0)
    assert [effect.to for effect in effects if isinstance(effect, Send)] == [SECOND, THIRD]
    assert len(of(effects, LeaveRequested)) == 2 and not of(effects, ResizeReported)
    assert not of(brain.handle(ReplicaLeft(replica=2, incarnation=0), 5.0), ResizeReported)
    effects = brain.handle(ReplicaLeft(replica=1, incarnation=0), 6.0)
    assert of(effects, ResizeReported) == [ResizeReported(replicas=1)]
    assert of(effects, EndPart) == [EndPart(part=SECOND, incarnation=0)]


def test_replicas_that_left_come_back_under_a_number_of_their_own() -> None:
    brain = manager(num_replicas=2)
    resized(brain, 1, 1.0)
    brain.handle(ReplicaLeft(replica=1, incarnation=0), 2.0)
    effects = resized(brain, 2, 3.0)
    assert of(effects, StartPart) == [StartPart(part=SECOND, incarnation=1)]
    assert of(effects, ResizeReported) == [ResizeReported(replicas=2)]
    assert of(brain.handle(lost(SECOND, incarnation=1), 4.0), EndPart), "it is watched again"


def test_a_replica_that_was_never_started_can_be_called_and_data_is_told_nothing_of_it_before() -> None:
    brain = ManagerBrain(incarnations={TRAINER: 0, DATA: 0, FIRST: 0}, away=[SECOND], now=0.0)
    for now in (3.0, 6.0):
        brain.handle(beat(0), now)
        assert not of(brain.handle(Tick(), now), ReplicaGone)
    assert of(resized(brain, 2, 7.0), StartPart) == [StartPart(part=SECOND, incarnation=0)]


def test_a_replica_that_dies_instead_of_leaving_has_left() -> None:
    brain = manager(num_replicas=2)
    resized(brain, 1, 1.0)
    effects = brain.handle(lost(SECOND), 2.0)
    assert of(effects, ResizeReported) == [ResizeReported(replicas=1)] and not of(effects, StartPart)
    brain = manager(num_replicas=2)
    brain.handle(lost(SECOND), 1.0)
    brain.handle(lost(SECOND, incarnation=1), 1.05)  # the second loss in a row: its successor has to wait
    assert of(resized(brain, 1, 1.1), ResizeReported) == [ResizeReported(replicas=1)]
    brain.handle(beat(0), 30.0)
    assert not of(brain.handle(Tick(), 31.0), StartPart)


def test_one_that_is_wanted_again_while_it_leaves_leaves_first() -> None:
    brain = manager(num_replicas=2)
    resized(brain, 1, 1.0)
    assert not of(resized(brain, 2, 2.0), StartPart)
    effects = brain.handle(ReplicaLeft(replica=1, incarnation=0), 3.0)
    assert of(effects, StartPart) == [StartPart(part=SECOND, incarnation=1)]
    assert of(effects, ResizeReported) == [ResizeReported(replicas=2)]
