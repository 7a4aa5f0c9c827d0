"""The manager: notices that a part is gone and has it replaced, gives lost work back, and plans repacks.

Everything else goes on without it: with the manager dead, what lives keeps working, nothing is moved and nothing is
replaced. A new manager learns who is there from what the parts report.

Invariants:
- an incarnation is given up once and forever: its process is ended, its number never comes again;
- a part whose process is silent, or whose work gives no sign of life, is treated as dead, even if it only was slow: its
  samples would still count. Work that takes long and gives signs is never taken for that;
- a manager that was away itself (frozen, busy) blames nobody for the silence of that time, and a part that waits for a
  core is not blamed for its own;
- a resize is said to be done when every replica that was to leave has left, and not before;
- the run breaks, with a reason, when a kind of part is gone and will not come back.
"""

# Over budget: one state of each part, which every decision here reads or changes; places are decided elsewhere.

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.pipeline.effects import Effect, EndPart, Send, StartPart
from engine.pipeline.manager.placing import Anywhere, Start
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.addresses import DATA, DRIVER, Address, rollout_address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import ReplicaGone
from engine.pipeline.messages.to_driver import FaultReported, ResizeReported, RunBroken
from engine.pipeline.messages.to_manager import (
    HostsSeen,
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
from engine.policy.awake import AwakeTime
from engine.policy.progress import TURNING, Piece
from engine.policy.recovery import (
    GiveUp,
    PartKind,
    Patience,
    after_loss,
    breaks_the_run,
    what_follows,
)
from engine.policy.silence import Silence

RESEND_AFTER_S: Final = 2.0
NEVER_BEGUN: Final = -1
HOST_IS_GONE: Final = "its host is gone"


@dataclass(slots=True, kw_only=True)
class Watch:
    """The state of one part's newest incarnation, as the manager knows it."""

    incarnation: int
    silence: Silence
    """Since the last heartbeat, or since the start."""
    standstill: Silence
    """Since a sign of life in its work."""
    has_spoken: bool = False
    piece: Piece = TURNING
    """The work that it is at."""
    waited_s: float = 0.0
    """For a core, as it says itself."""
    start_due_at: float | None = None
    """It is dead, and its successor starts then."""
    is_given_up: bool = False
    told_at: float = 0.0
    lost_at: list[float] = field(default_factory=list)
    leaves_by: float | None = None
    has_left: bool = False

    @classmethod
    def since(cls, now: float, *, incarnation: int, **state: Any) -> "Watch":
        return cls(incarnation=incarnation, silence=Silence(now), standstill=Silence(now), **state)

    @property
    def is_watched(self) -> bool:
        return self.start_due_at is None and not self.is_given_up and not self.has_left


class ManagerBrain:
    def __init__(
        self,
        *,
        now: float,
        num_replicas: int = 0,
        incarnations: Mapping[Address, int] | None = None,
        away: Collection[Address] = (),
        waiting: Collection[Address] = (),
        placing: Anywhere | None = None,
        repacker: Repacker | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`incarnations`: the parts to watch, as they are now; none: that many replicas, just started. `away`: replicas
        that were not started and may be ordered to come; `waiting`: those that come as soon as a host has room.
        `placing`: None: the body knows where to start what."""
        if incarnations is None:
            incarnations = {rollout_address(replica): 0 for replica in range(num_replicas)}
        self._watches = {part: Watch.since(now, incarnation=incarnation) for part, incarnation in incarnations.items()}
        self._watches |= {part: Watch.since(now, incarnation=NEVER_BEGUN, has_left=True) for part in away}
        self._watches |= {part: Watch.since(now, incarnation=NEVER_BEGUN, start_due_at=now) for part in waiting}
        self._placing = placing or Anywhere()
        self._repacker = repacker
        self._patience = patience or Patience()
        self._resize: ResizeOrdered | None = None
        self._awake = AwakeTime(now)

    def handle(self, message: Message, now: float) -> list[Effect]:
        now = self._awake.at(now)
        match message:
            case ReplicaReported():
                watch = self._watches.get(rollout_address(message.replica))
                if self._repacker and watch is not None and message.incarnation == watch.incarnation:
                    self._repacker.hear(message)
                return []
            case PartReported():
                self._hear(message, now)
                return []
            case PartStarved():
                self._excuse(message, now)
                return []
            case PartLost():
                return self._on_lost(message.part, message.incarnation, message.reason, now)
            case WeightsUpdated():
                return [] if self._repacker is None else self._repacker.on_updated(message.weights, now)
            case LeaveOrdered():
                return self._on_leave_ordered(message, now)
            case HostsSeen():
                return self._on_hosts_seen(message, now)
            case ResizeOrdered():
                self._resize = message
                return self._towards_size(now)
            case ReplicaLeft():
                return [*self._on_left(message), *self._towards_size(now)]
            case Tick():
                return self._on_tick(now)
            case _:
                raise TypeError(f"the manager does not take {type(message).__name__}")

    def _hear(self, message: PartReported, now: float) -> None:
        watch = self._watches.get(message.part)
        if watch is None or message.incarnation != watch.incarnation:
            return
        if not watch.has_spoken or message.piece.serial > watch.piece.serial:
            watch.piece = message.piece
            watch.standstill.end(now)
        else:  # of this, its host may have told a part already
            waited_s = message.waited_s - watch.waited_s - watch.silence.waited_s
            watch.standstill.excuse(max(0.0, waited_s), now)
        watch.has_spoken, watch.waited_s = True, message.waited_s
        watch.silence.end(now)
        self._placing.hear(message.part)

    def _excuse(self, message: PartStarved, now: float) -> None:
        watch = self._watches.get(message.part)
        if watch is not None and message.incarnation == watch.incarnation:
            watch.silence.excuse(message.waited_s, now)
            watch.standstill.excuse(message.waited_s, now)

    # ── losses ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_lost(self, part: Address, incarnation: int, reason: str, now: float) -> list[Effect]:
        watch = self._watches.get(part)
        if watch is None or incarnation != watch.incarnation or not watch.is_watched:
            return []
        watch.lost_at.append(now)
        effects: list[Effect] = [EndPart(part=part, incarnation=incarnation), *self._tell_data(part, incarnation)]
        decision = after_loss(watch.lost_at, now)
        if watch.leaves_by is not None:
            watch.has_left = True
            self._placing.leave(part)
            action = "it was leaving; its unfinished groups went back"
        elif isinstance(decision, GiveUp):
            watch.is_given_up = True
            action = f"given up after {decision.num_losses} losses"
        else:
            watch.start_due_at = now + decision.after_s
            when = f"in {decision.after_s:.0f} s" if self._placing.has_place(part) else "when a host has room"
            action = f"{what_follows(_kind_of(part))}; a replacement starts {when}"
        effects.append(Send(to=DRIVER, message=FaultReported(component=str(part), message=reason, action=action)))
        if self._is_beyond_help():
            message = f"every {part.kind} is dead and was given up; the last one: {reason}"
            effects.append(Send(to=DRIVER, message=RunBroken(failure_class="infrastructure", message=message)))
        return [*effects, *self._towards_size(now), *self._start_due(now)]

    def _is_beyond_help(self) -> bool:
        gone: set[PartKind] = set()
        left: set[PartKind] = set()
        for part, watch in self._watches.items():
            (gone if watch.is_given_up or watch.has_left else left).add(_kind_of(part))
        return breaks_the_run(gone, left)

    def _tell_data(self, part: Address, incarnation: int) -> list[Effect]:
        if part.kind != "rollout":
            return []
        if self._repacker is not None:
            self._repacker.forget(part.number)
        return [Send(to=DATA, message=ReplicaGone(replica=part.number, incarnation=incarnation))]

    def _on_hosts_seen(self, message: HostsSeen, now: float) -> list[Effect]:
        effects: list[Effect] = []
        gone = [(part, self._watches[part].incarnation) for part in self._placing.see(message.hosts)]
        for part, incarnation in gone:  # by then one may have its successor elsewhere
            effects += self._on_lost(part, incarnation, HOST_IS_GONE, now)
        return [*effects, *self._start_due(now)]

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for part, watch in list(self._watches.items()):  # a loss may bring a relay that was never there
            effects += self._say_again(part, watch, now)
            reason = self._why_dead(watch, now) if watch.is_watched else None
            if reason is not None:
                effects += self._on_lost(part, watch.incarnation, reason, now)
        if self._repacker is not None:
            effects += self._repacker.on_tick(now)
        return [*effects, *self._start_due(now), *self._placing.tell(now)]

    def _why_dead(self, watch: Watch, now: float) -> str | None:
        silent_s, still_s = watch.silence.lasts_s(now), watch.standstill.lasts_s(now)
        if silent_s > self._patience.silence_s(has_spoken=watch.has_spoken):
            return f"no heartbeat for {silent_s:.0f} s"
        if watch.has_spoken and still_s > self._patience.standstill_s(watch.piece):
            return f"no sign of life for {still_s:.0f} s, in: {watch.piece.what}"
        return None

    def _say_again(self, part: Address, watch: Watch, now: float) -> list[Effect]:
        """Until its successor is heard, data may not know that a replica is gone; nor may it know that it must go."""
        is_over = watch.is_given_up or watch.has_left or (watch.incarnation > 0 and not watch.has_spoken)
        is_over = is_over or watch.leaves_by is not None or watch.start_due_at is not None
        is_over = is_over and watch.incarnation > NEVER_BEGUN
        if not is_over or now - watch.told_at < RESEND_AFTER_S:
            return []
        watch.told_at = now
        if watch.is_watched and watch.leaves_by is not None:
            request = LeaveRequested(incarnation=watch.incarnation, within_s=max(0.0, watch.leaves_by - now))
            return [Send(to=part, message=request)]
        has_successor = watch.is_watched and not watch.has_left
        gone = watch.incarnation - 1 if has_successor else watch.incarnation
        return self._tell_data(part, gone)

    def _start_due(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for start in self._startable(now):
            # What begins in the middle of a run knows nothing, as if another had been before it.
            watch = self._watches.setdefault(start.part, Watch.since(now, incarnation=0))
            watch.incarnation += 1
            watch.has_spoken, watch.start_due_at, watch.piece, watch.waited_s = False, None, TURNING, 0.0
            watch.silence.end(now)
            watch.standstill.end(now)
            effects.append(
                StartPart(part=start.part, incarnation=watch.incarnation, hosts=start.hosts, relay=start.relay)
            )
        return effects

    def _startable(self, now: float) -> list[Start]:
        due_at = {part: watch.start_due_at for part, watch in self._watches.items()}
        due = [part for part, at in due_at.items() if at is not None and now >= at]
        return self._placing.starts(due, known=list(self._watches)) if due else []

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_leave_ordered(self, message: LeaveOrdered, now: float) -> list[Effect]:
        watch = self._watches.get(rollout_address(message.replica))
        if watch is None or not watch.is_watched or watch.leaves_by is not None:
            return []
        watch.leaves_by = now + message.within_s
        request = LeaveRequested(incarnation=watch.incarnation, within_s=message.within_s)
        return [Send(to=rollout_address(message.replica), message=request)]

    def _on_left(self, message: ReplicaLeft) -> list[Effect]:
        part = rollout_address(message.replica)
        watch = self._watches.get(part)
        if watch is None or message.incarnation != watch.incarnation or watch.has_left:
            return []
        watch.has_left = True
        self._placing.leave(part)
        gone = self._tell_data(part, message.incarnation)
        return [EndPart(part=part, incarnation=message.incarnation), *gone]

    # ── size ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _towards_size(self, now: float) -> list[Effect]:
        """One that leaves and is wanted again leaves first: what it had was given away by then."""
        order = self._resize
        if order is None:
            return []
        effects: list[Effect] = []
        for part, watch in self._watches.items():
            if part.kind != "rollout":
                continue
            if part.number >= order.replicas:
                if watch.is_watched:
                    effects += self._on_leave_ordered(LeaveOrdered(replica=part.number, within_s=order.within_s), now)
                elif watch.start_due_at is not None:  # it is dead already
                    watch.start_due_at, watch.has_left = None, True
                    self._placing.leave(part)
            elif watch.has_left:
                watch.has_left, watch.leaves_by, watch.start_due_at = False, None, now
        if self._has_size(order.replicas):
            self._resize = None
            effects.append(Send(to=DRIVER, message=ResizeReported(replicas=order.replicas, order=order.order)))
        return [*effects, *self._start_due(now)]

    def _has_size(self, replicas: int) -> bool:
        for part, watch in self._watches.items():
            if part.kind != "rollout" or watch.is_given_up:
                continue
            stays = part.number < replicas
            if watch.has_left == stays or (stays and watch.leaves_by is not None):
                return False
        return True


def _kind_of(part: Address) -> PartKind:
    match part.kind:
        case "rollout" | "relay" | "data" | "trainer":
            return part.kind
        case _:
            raise ValueError(f"the manager does not watch {part}")
