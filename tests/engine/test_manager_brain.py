"""The manager: a replica that is gone is noticed, its work given back, a successor started."""

from typing import Any

from engine.pipeline.effects import Effect, EndReplica, Send, StartReplica
from engine.pipeline.manager import ManagerBrain
from engine.pipeline.messages import ReplicaGone, ReplicaLost, ReplicaReported, Tick
from engine.pipeline.reports import FaultReported, RunBroken


def of(effects: list[Effect], kind: type) -> list[Any]:
    messages = [effect.message if isinstance(effect, Send) else effect for effect in effects]
    return [message for message in messages if isinstance(message, kind)]


def beat(replica: int = 0, incarnation: int = 0) -> ReplicaReported:
    return ReplicaReported(replica=replica, incarnation=incarnation, version=0, num_running=0, kv_used=0, num_tokens=0)


def lost(replica: int = 0, incarnation: int = 0) -> ReplicaLost:
    return ReplicaLost(replica=replica, incarnation=incarnation, reason="killed")


def test_a_dead_replica_is_ended_given_back_and_replaced_at_once() -> None:
    effects = ManagerBrain(num_replicas=2, now=0.0).handle(lost(), 5.0)
    assert of(effects, EndReplica) == [EndReplica(replica=0, incarnation=0)]
    assert of(effects, ReplicaGone) == [ReplicaGone(replica=0, incarnation=0)]
    assert of(effects, StartReplica) == [StartReplica(replica=0, incarnation=1)]
    assert "went back" in of(effects, FaultReported)[0].action


def test_one_death_reported_twice_is_one_death() -> None:
    brain = ManagerBrain(num_replicas=2, now=0.0)
    brain.handle(lost(), 5.0)
    assert brain.handle(lost(), 5.1) == []


def test_a_silent_replica_is_given_up_a_slow_starter_is_not() -> None:
    brain = ManagerBrain(num_replicas=2, now=0.0)
    brain.handle(beat(0), 1.0)
    assert brain.handle(Tick(), 20.0) == []
    effects = brain.handle(Tick(), 22.0)
    assert of(effects, EndReplica) == [EndReplica(replica=0, incarnation=0)]


def test_data_is_told_again_until_the_successor_is_heard() -> None:
    brain = ManagerBrain(num_replicas=2, now=0.0)
    brain.handle(lost(), 5.0)
    assert of(brain.handle(Tick(), 8.0), ReplicaGone)
    brain.handle(beat(0, incarnation=1), 9.0)
    assert of(brain.handle(Tick(), 12.0), ReplicaGone) == []


def test_a_replica_that_keeps_dying_is_restarted_later_and_later_then_given_up() -> None:
    brain = ManagerBrain(num_replicas=2, now=0.0)
    now = 0.0
    for incarnation in range(6):
        effects = brain.handle(lost(0, incarnation), now)
        while not of(effects, StartReplica) and incarnation < 5:
            now += 1.0
            effects = brain.handle(Tick(), now)
    assert "given up" in of(effects, FaultReported)[0].action
    assert of(effects, RunBroken) == [], "the other replica goes on"


def test_the_run_breaks_when_every_replica_is_given_up() -> None:
    brain = ManagerBrain(num_replicas=1, now=0.0)
    now, broken = 0.0, []
    for incarnation in range(6):
        effects = brain.handle(lost(0, incarnation), now)
        broken += of(effects, RunBroken)
        for _ in range(40):
            now += 1.0
            brain.handle(Tick(), now)
    assert broken[0].failure_class == "infrastructure" and "every rollout is dead" in broken[0].message
