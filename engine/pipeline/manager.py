"""The manager: notices that a replica is gone, gives its work back, and has it replaced.

Everything else goes on without it: with the manager dead, the replicas that live keep working.

Invariants:
- an incarnation is given up once and for ever: data is told, its process is ended, its number never comes again;
- a replica that was silent for long is treated as dead, even if it only was slow: its samples would still count;
- the run breaks, with a reason, when no replica is left and none will come.
"""

from dataclasses import dataclass, field
from typing import Final

from engine.pipeline.effects import Effect, EndReplica, Send, StartReplica
from engine.pipeline.messages import DATA, DRIVER, Message, ReplicaGone, ReplicaLost, ReplicaReported, Tick
from engine.pipeline.reports import FaultReported, RunBroken
from engine.policy.recovery import GiveUp, after_loss

# Heartbeats come every second from the thread that decodes. On a busy host one decode or install may take seconds.
SILENT_AFTER_S: Final = 20.0
# Until its first heartbeat a replica imports, loads and pulls, on a host where others do the same.
START_WITHIN_S: Final = 300.0
RESEND_AFTER_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Watch:
    """What is known of one replica's newest incarnation."""

    incarnation: int
    started_at: float
    heard_at: float | None = None
    start_due_at: float | None = None
    """It is dead, and its successor starts then."""
    is_given_up: bool = False
    told_at: float = 0.0
    lost_at: list[float] = field(default_factory=list)


class ManagerBrain:
    def __init__(self, *, num_replicas: int, now: float) -> None:
        self._watches = {replica: Watch(incarnation=0, started_at=now) for replica in range(num_replicas)}

    def handle(self, message: Message, now: float) -> list[Effect]:
        match message:
            case ReplicaReported():
                self._on_reported(message, now)
                return []
            case ReplicaLost():
                return self._on_lost(message.replica, message.incarnation, message.reason, now)
            case Tick():
                return self._on_tick(now)
            case _:
                raise TypeError(f"the manager does not take {type(message).__name__}")

    def _on_reported(self, message: ReplicaReported, now: float) -> None:
        watch = self._watches[message.replica]
        if message.incarnation == watch.incarnation:
            watch.heard_at = now

    def _on_lost(self, replica: int, incarnation: int, reason: str, now: float) -> list[Effect]:
        watch = self._watches[replica]
        if incarnation != watch.incarnation or watch.start_due_at is not None or watch.is_given_up:
            return []
        watch.lost_at.append(now)
        decision = after_loss(watch.lost_at, now)
        effects: list[Effect] = [
            EndReplica(replica=replica, incarnation=incarnation),
            Send(to=DATA, message=ReplicaGone(replica=replica, incarnation=incarnation)),
        ]
        if isinstance(decision, GiveUp):
            watch.is_given_up = True
            action = f"given up after {decision.num_losses} losses; the others do its work"
        else:
            watch.start_due_at = now + decision.after_s
            action = f"its unfinished groups went back; a replacement starts in {decision.after_s:.0f} s"
        fault = FaultReported(component=f"rollout/{replica}", message=reason, action=action)
        effects.append(Send(to=DRIVER, message=fault))
        if all(other.is_given_up for other in self._watches.values()):
            message = f"every rollout is dead and was given up; the last one: {reason}"
            effects.append(Send(to=DRIVER, message=RunBroken(failure_class="infrastructure", message=message)))
        return [*effects, *self._start_due(now)]

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for replica, watch in self._watches.items():
            effects += self._say_again(replica, watch, now)
            silent_s = now - (watch.started_at if watch.heard_at is None else watch.heard_at)
            allowed_s = START_WITHIN_S if watch.heard_at is None else SILENT_AFTER_S
            if silent_s > allowed_s and watch.start_due_at is None and not watch.is_given_up:
                reason = f"no heartbeat for {silent_s:.0f} s"
                effects += self._on_lost(replica, watch.incarnation, reason, now)
        return [*effects, *self._start_due(now)]

    def _say_again(self, replica: int, watch: Watch, now: float) -> list[Effect]:
        """Until its successor is heard, data may not know that the replica is gone."""
        is_over = watch.is_given_up or (watch.incarnation > 0 and watch.heard_at is None)
        if not is_over or now - watch.told_at < RESEND_AFTER_S:
            return []
        watch.told_at = now
        gone = watch.incarnation if watch.is_given_up else watch.incarnation - 1
        return [Send(to=DATA, message=ReplicaGone(replica=replica, incarnation=gone))]

    def _start_due(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for replica, watch in self._watches.items():
            if watch.start_due_at is None or now < watch.start_due_at:
                continue
            watch.incarnation += 1
            watch.started_at, watch.heard_at, watch.start_due_at = now, None, None
            effects.append(StartReplica(replica=replica, incarnation=watch.incarnation))
        return effects
