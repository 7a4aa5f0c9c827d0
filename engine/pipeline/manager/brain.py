"""The manager: detects lost parts and has them replaced, gives lost work back, and plans repacks.

The run does not need it: with the manager dead, live parts keep working, but nothing is moved or replaced. A new
manager learns the parts from their reports.

Invariants:
- an incarnation is given up once and for all: its process is ended, its number is never reused;
- a part whose process is silent, or whose work shows no sign of life, counts as dead, even if it was only slow: its
  samples would still count. Long work with signs of life never does;
- time in which the manager itself did not run (frozen, busy), or in which a part waited for a core, is not the part's
  silence;
- a resize is reported complete only when every leaving replica has left;
- the run fails, with a reason, when a kind of part is gone and will not come back: as `infrastructure` only if hosts
  were lost each time, for a model or a prompt may crash every replica.
"""

# Over budget: every decision here reads or changes the state of each part; places are decided elsewhere.

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
    HostsObserved,
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
    describe_recovery,
)
from engine.policy.silence import Silence
from engine.spec.causes import PlatformCause

RESEND_AFTER_S: Final = 2.0
NEVER_BEGUN: Final = -1
HOST_IS_GONE: Final = "its host was lost"


@dataclass(slots=True, kw_only=True)
class Watch:
    """The manager's view of a part's newest incarnation."""

    incarnation: int
    silence: Silence
    """Since the last heartbeat, or since the start."""
    standstill: Silence
    """Since the last sign of life in its work."""
    has_spoken: bool = False
    piece: Piece = TURNING
    """Its current work."""
    waited_s: float = 0.0
    """Total wait for a core, as reported by the part."""
    start_due_at: float | None = None
    """Start of the successor, if the part is dead."""
    is_given_up: bool = False
    told_at: float = 0.0
    lost_at: list[float] = field(default_factory=list)
    num_lost_with_host: int = 0
    """The losses whose cause is known: the host was lost."""
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
        """`incarnations`: the parts to watch, with current incarnations; None: `num_replicas` replicas, just started.
        `away`: replicas that were not started but may be ordered; `waiting`: replicas that start once a host has room.
        `placing`: None: the body decides where parts start."""
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
                    self._repacker.receive(message)
                return []
            case PartReported():
                self._receive(message, now)
                return []
            case PartStarved():
                self._excuse(message, now)
                return []
            case PartLost():
                return self._on_lost(
                    message.part, message.incarnation, message.reason, now, has_failed=message.has_failed
                )
            case WeightsUpdated():
                return [] if self._repacker is None else self._repacker.on_updated(message.weights, now)
            case LeaveOrdered():
                return self._on_leave_ordered(message, now)
            case HostsObserved():
                return self._on_hosts_observed(message, now)
            case ResizeOrdered():
                self._resize = message
                return self._approach_size(now)
            case ReplicaLeft():
                return [*self._on_left(message), *self._approach_size(now)]
            case Tick():
                return self._on_tick(now)
            case _:
                raise TypeError(f"the manager does not take {type(message).__name__}")

    def _receive(self, message: PartReported, now: float) -> None:
        watch = self._watches.get(message.part)
        if watch is None or message.incarnation != watch.incarnation:
            return
        if not watch.has_spoken or message.piece.serial > watch.piece.serial:
            watch.piece = message.piece
            watch.standstill.end(now)
        else:  # less the waits that its host has reported already
            waited_s = message.waited_s - watch.waited_s - watch.silence.waited_s
            watch.standstill.excuse(max(0.0, waited_s), now)
        watch.has_spoken, watch.waited_s = True, message.waited_s
        watch.silence.end(now)
        self._placing.receive(message.part)

    def _excuse(self, message: PartStarved, now: float) -> None:
        watch = self._watches.get(message.part)
        if watch is not None and message.incarnation == watch.incarnation:
            watch.silence.excuse(message.waited_s, now)
            watch.standstill.excuse(message.waited_s, now)

    # ── losses ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_lost(
        self, part: Address, incarnation: int, reason: str, now: float, *, has_failed: bool = False
    ) -> list[Effect]:
        watch = self._watches.get(part)
        if watch is None or incarnation != watch.incarnation or not watch.is_watched:
            return []
        watch.lost_at.append(now)
        watch.num_lost_with_host += reason == HOST_IS_GONE
        notice = self._notify_data(part, incarnation, has_failed=has_failed)
        effects: list[Effect] = [EndPart(part=part, incarnation=incarnation), *notice]
        decision = after_loss(watch.lost_at, now)
        if watch.leaves_by is not None:
            watch.has_left = True
            self._placing.leave(part)
            action = "it was shutting down; its unfinished groups returned to data"
        elif isinstance(decision, GiveUp):
            watch.is_given_up = True
            action = f"given up after {decision.num_losses} losses"
        else:
            watch.start_due_at = now + decision.after_s
            when = f"in {decision.after_s:.0f} s" if self._placing.has_place(part) else "when a host has room"
            action = f"{describe_recovery(_kind_of(part))}; a replacement starts {when}"
        effects.append(Send(to=DRIVER, message=FaultReported(component=str(part), message=reason, action=action)))
        if self._is_beyond_help():
            message = f"every {part.kind} was lost and not replaced; the last error: {reason}"
            effects.append(Send(to=DRIVER, message=self._make_broken(part.kind, message)))
        return [*effects, *self._approach_size(now), *self._start_due(now)]

    def _make_broken(self, kind: str, message: str) -> RunBroken:
        lost = [watch for part, watch in self._watches.items() if part.kind == kind and watch.is_given_up]
        if lost and all(watch.num_lost_with_host == len(watch.lost_at) for watch in lost):
            return RunBroken(failure_class="infrastructure", message=message, cause=PlatformCause.NODE_LOST)
        return RunBroken(failure_class="platform", message=message)

    def _is_beyond_help(self) -> bool:
        gone: set[PartKind] = set()
        left: set[PartKind] = set()
        for part, watch in self._watches.items():
            (gone if watch.is_given_up or watch.has_left else left).add(_kind_of(part))
        return breaks_the_run(gone, left)

    def _notify_data(self, part: Address, incarnation: int, *, has_failed: bool = False) -> list[Effect]:
        if part.kind != "rollout":
            return []
        if self._repacker is not None:
            self._repacker.forget(part.number)
        gone = ReplicaGone(replica=part.number, incarnation=incarnation, has_failed=has_failed)
        return [Send(to=DATA, message=gone)]

    def _on_hosts_observed(self, message: HostsObserved, now: float) -> list[Effect]:
        effects: list[Effect] = []
        gone = [(part, self._watches[part].incarnation) for part in self._placing.update_hosts(message.hosts)]
        for part, incarnation in gone:  # one may already have its successor elsewhere
            effects += self._on_lost(part, incarnation, HOST_IS_GONE, now)
        return [*effects, *self._start_due(now)]

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for part, watch in list(self._watches.items()):  # a loss may add a relay
            effects += self._resend(part, watch, now)
            if not watch.is_watched:
                continue
            if silence := self._find_silence(watch, now):
                effects += self._on_lost(part, watch.incarnation, silence, now)
            elif standstill := self._find_standstill(watch, now):
                effects += self._on_lost(part, watch.incarnation, standstill, now, has_failed=True)
        if self._repacker is not None:
            effects += self._repacker.on_tick(now)
        return [*effects, *self._start_due(now), *self._placing.announce(now)]

    def _find_silence(self, watch: Watch, now: float) -> str:
        silent_s = watch.silence.lasts_s(now)
        is_silent = silent_s > self._patience.silence_s(has_spoken=watch.has_spoken)
        return f"no heartbeat for {silent_s:.0f} s" if is_silent else ""

    def _find_standstill(self, watch: Watch, now: float) -> str:
        still_s = watch.standstill.lasts_s(now)
        is_still = watch.has_spoken and still_s > self._patience.standstill_s(watch.piece)
        return f"no progress for {still_s:.0f} s, in: {watch.piece.what}" if is_still else ""

    def _resend(self, part: Address, watch: Watch, now: float) -> list[Effect]:
        """Repeats a replica's loss to data until its successor reports, and the request to leave to the replica."""
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
        return self._notify_data(part, gone)

    def _start_due(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for start in self._startable(now):
            # A part that starts in mid-run knows nothing, like a successor: its incarnation is above 0.
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
        notice = self._notify_data(part, message.incarnation)
        return [EndPart(part=part, incarnation=message.incarnation), *notice]

    # ── size ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _approach_size(self, now: float) -> list[Effect]:
        """A leaving replica that is wanted again leaves first: its work has been given away by then."""
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
