"""The manager: detects a lost part, gives its work back, and starts a successor."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from engine.pipeline.effects import Effect, EndPart, Send, StartPart
from engine.pipeline.manager.brain import HOST_IS_GONE, ManagerBrain
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.addresses import DATA, TRAINER, Address, relay_address, rollout_address
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import RepackPlanned, ReplicaGone
from engine.pipeline.messages.to_driver import FaultReported, ResizeReported, RunBroken
from engine.pipeline.messages.to_manager import (
    LeaveOrdered,
    PartLost,
    PartReported,
    PartStarved,
    ReplicaLeft,
    ReplicaReported,
    ResizeOrdered,
    WeightsUpdated,
)
from engine.pipeline.messages.to_rollout import LeaveRequested
from engine.policy.lineage import WeightsId
from engine.policy.progress import Piece
from engine.policy.schedule import PRESETS
from engine.spec.causes import PlatformCause
from tests.engine.pipeline.brain_builders import PLAN, of

FIRST, SECOND, THIRD = map(rollout_address, range(3))
WHOLE = {FIRST: 0, SECOND: 0, relay_address(0): 0, relay_address(1): 0, DATA: 0, TRAINER: 0}


def manager(num_replicas: int = 2) -> ManagerBrain:
    return ManagerBrain(num_replicas=num_replicas, now=0.0)


def load(
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


def alive(part: Address = FIRST, incarnation: int = 0, *, serial: int = 0, **piece: Any) -> PartReported:
    """A heartbeat."""
    return PartReported(part=part, incarnation=incarnation, piece=Piece(serial=serial, **piece))


def until(brain: ManagerBrain, now: float, *, since: float, beats: Iterable[PartReported] = ()) -> list[Effect]:
    """Ticks every second until `now`, each with these heartbeats."""
    done: list[Effect] = []
    while since < now:
        since = min(now, since + 1.0)
        for heartbeat in beats:
            done += brain.handle(heartbeat, since)
        done += brain.handle(Tick(), since)
    return done


def lost(part: Address = FIRST, incarnation: int = 0, reason: str = "killed") -> PartLost:
    return PartLost(part=part, incarnation=incarnation, reason=reason)


def after_six_losses(brain: ManagerBrain, part: Address, *, reason: str = "killed") -> list[Effect]:
    """All effects of the manager, with every successor dying at once."""
    done: list[Effect] = []
    now = 0.0
    for incarnation in range(6):
        done += brain.handle(lost(part, incarnation, reason), now)
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
    assert "returned to data" in of(effects, FaultReported)[0].action


def test_lost_part_is_replaced_and_data_learns_of_replicas_only() -> None:
    for part in (relay_address(1), DATA, TRAINER):
        effects = ManagerBrain(incarnations=WHOLE, now=0.0).handle(lost(part), 5.0)
        assert of(effects, EndPart) == [EndPart(part=part, incarnation=0)]
        assert of(effects, StartPart) == [StartPart(part=part, incarnation=1)]
        assert of(effects, ReplicaGone) == [] and of(effects, RunBroken) == []


def test_an_incarnation_is_given_up_once_and_for_ever() -> None:
    brain = manager()
    brain.handle(lost(), 5.0)
    assert brain.handle(lost(), 5.1) == []
    assert brain.handle(alive(incarnation=0), 5.2) == []
    effects = brain.handle(lost(incarnation=1), 6.0)
    assert of(effects, EndPart) == [EndPart(part=FIRST, incarnation=1)]
    assert of(brain.handle(Tick(), 10.0), StartPart) == [StartPart(part=FIRST, incarnation=2)]


def test_silent_part_counts_as_dead_and_a_slow_starter_does_not() -> None:
    brain = manager()
    brain.handle(alive(), 1.0)
    assert until(brain, 20.0, since=1.0) == []
    effects = until(brain, 22.0, since=20.0)
    assert of(effects, EndPart) == [EndPart(part=FIRST, incarnation=0)]
    assert "no heartbeat for 21 s" in of(effects, FaultReported)[0].message


def test_a_part_that_never_starts_is_treated_as_dead() -> None:
    assert of(until(manager(1), 301.0, since=0.0), EndPart) == [EndPart(part=FIRST, incarnation=0)]


def test_part_with_heartbeats_but_a_stuck_loop_counts_as_dead() -> None:
    brain = manager(1)
    turning = alive(serial=7)
    assert until(brain, 20.0, since=0.0, beats=[turning]) == []
    effects = until(brain, 22.0, since=20.0, beats=[turning])
    assert of(effects, EndPart) == [EndPart(part=FIRST, incarnation=0)]
    assert "no progress for 21 s, in: loop" in of(effects, FaultReported)[0].message


def test_load_of_forty_minutes_that_progresses_is_left_alone() -> None:
    brain = manager(1)
    for unit in range(24):
        loading = alive(serial=unit, what="load")
        assert until(brain, 100.0 * (unit + 1), since=100.0 * unit, beats=[loading]) == []


def test_hang_during_a_load_is_found_within_two_minutes() -> None:
    brain = manager(1)
    for unit in range(12):
        loading = alive(serial=unit, what="load")
        assert until(brain, 100.0 * (unit + 1), since=100.0 * unit, beats=[loading]) == []
    assert until(brain, 1_220.0, since=1_200.0, beats=[loading]) == []
    effects = until(brain, 1_222.0, since=1_220.0, beats=[loading])
    assert of(effects, EndPart) == [EndPart(part=FIRST, incarnation=0)]
    assert "no progress for 121 s, in: load" in of(effects, FaultReported)[0].message


def test_part_starved_in_the_middle_of_a_load_is_not_hung() -> None:
    brain = manager(1)
    for second in range(600):
        loading = replace(alive(serial=1, what="load"), waited_s=0.9 * second)
        assert until(brain, second + 1.0, since=float(second), beats=[loading]) == [], second


def test_a_late_heartbeat_takes_back_no_sign_of_life() -> None:
    brain = manager(1)
    brain.handle(alive(serial=8), 1.0)
    brain.handle(alive(serial=7, what="install"), 1.1)
    assert of(until(brain, 23.0, since=1.1, beats=[alive(serial=8)]), EndPart)


def test_manager_that_was_away_blames_no_part_for_silence() -> None:
    brain = manager(1)
    brain.handle(alive(), 1.0)
    assert brain.handle(Tick(), 100.0) == []
    assert until(brain, 119.0, since=100.0) == []
    assert of(until(brain, 121.0, since=119.0), EndPart)


def test_heartbeat_of_a_dead_incarnation_is_ignored() -> None:
    brain = manager(1)
    brain.handle(lost(), 1.0)
    brain.handle(alive(incarnation=1), 2.0)
    dead = alive(incarnation=0)
    assert of(until(brain, 23.0, since=2.0, beats=[dead]), EndPart) == [EndPart(part=FIRST, incarnation=1)]


def test_data_learns_whether_a_replica_failed_at_its_work() -> None:
    failed = replace(lost(), has_failed=True)
    assert [gone.has_failed for gone in of(manager().handle(failed, 5.0), ReplicaGone)] == [True]
    assert [gone.has_failed for gone in of(manager().handle(lost(), 5.0), ReplicaGone)] == [False]


def test_loss_is_repeated_to_data_until_the_successor_reports() -> None:
    brain = manager()
    brain.handle(lost(), 5.0)
    assert of(brain.handle(Tick(), 8.0), ReplicaGone) == [ReplicaGone(replica=0, incarnation=0)]
    brain.handle(alive(incarnation=1), 9.0)
    assert of(brain.handle(Tick(), 12.0), ReplicaGone) == []


def test_replica_that_keeps_dying_is_given_up() -> None:
    done = after_six_losses(manager(), FIRST)
    assert "given up" in of(done, FaultReported)[-1].action
    assert [start.incarnation for start in of(done, StartPart)] == [1, 2, 3, 4, 5]
    assert of(done, RunBroken) == []


def test_run_fails_when_a_kind_of_part_is_given_up() -> None:
    for part, others in ((FIRST, {}), (DATA, {FIRST: 0}), (TRAINER, {FIRST: 0})):
        done = after_six_losses(ManagerBrain(incarnations={part: 0, **others}, now=0.0), part)
        broken = of(done, RunBroken)[0]
        assert (broken.failure_class, broken.cause) == ("platform", None)
        assert "was lost and not replaced" in broken.message


def test_run_whose_hosts_were_lost_each_time_names_that_cause() -> None:
    done = after_six_losses(ManagerBrain(incarnations={FIRST: 0}, now=0.0), FIRST, reason=HOST_IS_GONE)
    broken = of(done, RunBroken)[0]
    assert (broken.failure_class, broken.cause) == ("infrastructure", PlatformCause.NODE_LOST)


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_replica_without_device_is_asked_to_leave_until_it_has() -> None:
    brain = manager()
    order = LeaveOrdered(replica=0, within_s=30.0)
    assert of(brain.handle(order, 1.0), LeaveRequested) == [LeaveRequested(incarnation=0, within_s=30.0)]
    assert brain.handle(order, 1.5) == []
    brain.handle(alive(), 4.0)
    assert of(brain.handle(Tick(), 5.0), LeaveRequested) == [LeaveRequested(incarnation=0, within_s=26.0)]


def test_a_replica_that_has_left_is_ended_and_not_replaced() -> None:
    brain = manager()
    brain.handle(LeaveOrdered(replica=0, within_s=30.0), 1.0)
    effects = brain.handle(ReplicaLeft(replica=0, incarnation=0), 9.0)
    assert of(effects, EndPart) == [EndPart(part=FIRST, incarnation=0)]
    assert of(effects, ReplicaGone) == [ReplicaGone(replica=0, incarnation=0)]
    assert brain.handle(ReplicaLeft(replica=0, incarnation=0), 9.1) == []
    assert brain.handle(lost(), 10.0) == [] and brain.handle(alive(SECOND), 399.0) == []
    assert of(brain.handle(Tick(), 400.0), StartPart) == []


def test_replica_that_dies_while_leaving_is_not_replaced() -> None:
    brain = manager()
    brain.handle(LeaveOrdered(replica=0, within_s=30.0), 1.0)
    effects = brain.handle(lost(), 2.0)
    assert of(effects, ReplicaGone) and of(effects, StartPart) == [] and of(effects, RunBroken) == []


# ── a new manager, and tails ──────────────────────────────────────────────────────────────────────────────────────────


def test_new_manager_learns_the_parts_from_their_reports() -> None:
    brain = ManagerBrain(incarnations=WHOLE | {FIRST: 3}, now=1_000.0)
    assert of(brain.handle(Tick(), 1_010.0), EndPart) == [], "no part is judged before its first heartbeat"
    brain.handle(alive(incarnation=3), 1_011.0)
    effects = brain.handle(lost(incarnation=3), 1_012.0)
    assert of(effects, StartPart) == [StartPart(part=FIRST, incarnation=4)]


def with_tails() -> ManagerBrain:
    brain = ManagerBrain(num_replicas=2, now=0.0, repacker=Repacker.for_plan(PLAN))
    for replica in (0, 1):
        brain.handle(load(replica, num_running=2, kv_used=0.2 + 0.1 * replica), 2.0)
    return brain


def test_new_weights_are_the_moment_to_look_for_tails() -> None:
    (plan,) = of(with_tails().handle(WeightsUpdated(weights=WeightsId(0, 1)), 3.0), RepackPlanned)
    (move,) = plan.moves
    assert (move.source, move.host, move.weights) == (0, 1, WeightsId(0, 0))


def test_a_dead_replica_is_in_no_plan() -> None:
    brain = with_tails()
    brain.handle(lost(SECOND), 2.5)
    assert of(brain.handle(WeightsUpdated(weights=WeightsId(0, 1)), 3.0), RepackPlanned) == []


def test_replica_joins_the_next_plan_only_after_a_measurement() -> None:
    brain = with_tails()
    brain.handle(WeightsUpdated(weights=WeightsId(0, 1)), 3.0)
    assert of(brain.handle(Tick(), 7.0), RepackPlanned) == []
    for replica, kv_used in ((0, 0.3), (1, 0.4)):
        brain.handle(load(replica, num_running=3, kv_used=kv_used), 10.0)
    assert of(brain.handle(Tick(), 14.0), RepackPlanned)


def test_a_schedule_without_repack_moves_nothing() -> None:
    assert Repacker.for_plan(replace(PLAN, schedule=PRESETS["sync"])) is None


# ── size ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def resized(brain: ManagerBrain, replicas: int, now: float) -> list[Effect]:
    return brain.handle(ResizeOrdered(replicas=replicas, within_s=30.0), now)


def test_smaller_size_is_reached_when_the_last_replica_has_left() -> None:
    brain = manager(num_replicas=3)
    effects = resized(brain, 1, 1.0)
    assert [effect.to for effect in effects if isinstance(effect, Send)] == [SECOND, THIRD]
    assert len(of(effects, LeaveRequested)) == 2 and not of(effects, ResizeReported)
    assert not of(brain.handle(ReplicaLeft(replica=2, incarnation=0), 5.0), ResizeReported)
    effects = brain.handle(ReplicaLeft(replica=1, incarnation=0), 6.0)
    assert of(effects, ResizeReported) == [ResizeReported(replicas=1)]
    assert of(effects, EndPart) == [EndPart(part=SECOND, incarnation=0)]


def test_replicas_that_left_return_under_their_number() -> None:
    brain = manager(num_replicas=2)
    resized(brain, 1, 1.0)
    brain.handle(ReplicaLeft(replica=1, incarnation=0), 2.0)
    effects = resized(brain, 2, 3.0)
    assert of(effects, StartPart) == [StartPart(part=SECOND, incarnation=1)]
    assert of(effects, ResizeReported) == [ResizeReported(replicas=2)]
    assert of(brain.handle(lost(SECOND, incarnation=1), 4.0), EndPart), "it is watched again"


def test_data_does_not_learn_of_a_replica_that_never_started() -> None:
    brain = ManagerBrain(incarnations={TRAINER: 0, DATA: 0, FIRST: 0}, away=[SECOND], now=0.0)
    for now in (3.0, 6.0):
        brain.handle(alive(), now)
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
    brain.handle(alive(), 30.0)
    assert not of(brain.handle(Tick(), 31.0), StartPart)


def test_leaving_replica_that_is_wanted_again_leaves_first() -> None:
    brain = manager(num_replicas=2)
    resized(brain, 1, 1.0)
    assert not of(resized(brain, 2, 2.0), StartPart)
    effects = brain.handle(ReplicaLeft(replica=1, incarnation=0), 3.0)
    assert of(effects, StartPart) == [StartPart(part=SECOND, incarnation=1)]
    assert of(effects, ResizeReported) == [ResizeReported(replicas=2)]


# ── starved hosts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def starved(waited_s: float, part: Address = FIRST, incarnation: int = 0) -> PartStarved:
    """A second's report from the part's host."""
    return PartStarved(part=part, incarnation=incarnation, waited_s=waited_s)


def with_second(brain: ManagerBrain, now: float, *, since: float, host_waits: float) -> list[Effect]:
    """The first replica sends no heartbeat; its host reports each second for how long its process waited."""
    done: list[Effect] = []
    while since < now:
        since += 1.0
        done += brain.handle(alive(SECOND, serial=int(since)), since)
        done += brain.handle(starved(host_waits), since) if host_waits else []
        done += brain.handle(Tick(), since)
    return done


def test_part_that_waits_for_a_core_is_not_replaced() -> None:
    brain = manager()
    brain.handle(alive(), 0.0)
    assert with_second(brain, 600.0, since=0.0, host_waits=1.0) == []
    assert with_second(brain, 618.0, since=600.0, host_waits=0.0) == [], "its silence begins once it could run"
    assert of(with_second(brain, 625.0, since=618.0, host_waits=0.0), EndPart) == [EndPart(part=FIRST, incarnation=0)]


def test_stopped_part_is_replaced_as_fast_as_ever() -> None:
    brain = manager()
    brain.handle(alive(), 0.0)
    assert with_second(brain, 20.0, since=0.0, host_waits=0.0) == []
    assert of(with_second(brain, 21.0, since=20.0, host_waits=0.0), EndPart) == [EndPart(part=FIRST, incarnation=0)]


def test_starvation_of_an_earlier_incarnation_excuses_no_silence() -> None:
    brain = manager()
    brain.handle(lost(), 0.0)
    brain.handle(alive(incarnation=1), 1.0)
    effects: list[Effect] = []
    for second in range(2, 23):
        effects += brain.handle(starved(1.0, incarnation=0), float(second)) + brain.handle(Tick(), float(second))
    assert EndPart(part=FIRST, incarnation=1) in of(effects, EndPart)


def test_loop_that_waits_for_a_core_is_not_stuck() -> None:
    """Heartbeats arrive, and the loop gets a twentieth of a core."""
    brain, waited_s = manager(num_replicas=1), 0.0
    for second in range(300):
        waited_s += 0.95
        beat = replace(alive(serial=1, what="decode"), waited_s=waited_s)
        assert brain.handle(beat, float(second)) + brain.handle(Tick(), float(second)) == []
    stuck = [replace(beat, waited_s=waited_s)]
    assert of(until(brain, 410.0, since=299.0, beats=stuck), EndPart) == [EndPart(part=FIRST, incarnation=0)]
