"""One replica: pulls weights, requests work, runs it, delivers finished trajectories.

          ┌─────── a slot is free, newer weights are there ────────────┐
          ▼                                                            │
    pull weights ──▶ install ──▶ sync: "I have room for n" ──▶ run what is granted ──▶ deliver
                                        ▲────────────────────────────────────┘

Invariants:
- a finished trajectory is kept, and delivered repeatedly, until data has confirmed it;
- a grant for an earlier incarnation, an older lease, or weights that are gone starts nothing;
- a leaving replica takes no more work, and has left only once data needs nothing more of it.
"""

from dataclasses import replace
from typing import Final

from engine.pipeline.effects import (
    Effect,
    HandOverSequences,
    ResumeSequences,
    Send,
    StartSequences,
    StopSequences,
)
from engine.pipeline.messages.addresses import DATA, DRIVER, MANAGER
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import ReplicaSynced
from engine.pipeline.messages.to_driver import FaultReported, ReplicaReady
from engine.pipeline.messages.to_manager import ReplicaLeft, ReplicaReported
from engine.pipeline.messages.to_rollout import (
    InstallRefused,
    LeaveRequested,
    LoadMeasured,
    ProgressAcknowledged,
    ProgressReported,
    SequencesHandedOver,
    TrajectoriesEnded,
    VersionAnnounced,
    VersionMissing,
    WeightsInstalled,
    WeightsServed,
    WorkGranted,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupTask, ResidentLoad, SampleProgress
from engine.pipeline.rollout.progress_stream import ProgressStream
from engine.pipeline.rollout.weights import ReplicaWeights
from engine.pipeline.rollout.workload import Workload
from engine.policy.lineage import NO_WEIGHTS, WeightsId

# Short sequences end every few milliseconds; batching for this long limits a replica to 20 messages a second.
GATHER_S: Final = 0.05
# Samples of a group end in bursts: the rate at which places become free is averaged over this time.
PACE_OVER_S: Final = 1.0
# Unanswered messages are repeated after this time.
RESEND_AFTER_S: Final = 2.0


class RolloutBrain:
    def __init__(self, plan: Plan, *, replica: int, incarnation: int, relay: int | None = None) -> None:
        """`relay`: the relay on its host; None: the plan's."""
        relay = plan.relay_of(replica) if relay is None else relay
        self._plan = plan
        self._replica, self._incarnation = replica, incarnation
        self._work = Workload(max_batch=plan.max_batch, keeps_version=plan.schedule.keeps_version)
        self._weights = ReplicaWeights(plan, self._work, replica=replica, incarnation=incarnation, relay=relay)
        self._progress_stream = ProgressStream(replica=replica, incarnation=incarnation)
        self._serial = 0
        self._synced_at = float("-inf")
        self._ends_per_s = 0.0
        self._num_ended = 0
        """Samples ended since the last sync."""
        self.has_news = False
        """A sync is due, and waits a moment for more changes: a tick sends it."""
        self._streamed_at = 0.0
        self._leaves_at: float | None = None
        self._stopped: tuple[SampleProgress, ...] = ()
        self._has_stopped = False
        self._has_left = False

    def handle(self, message: Message, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match message:
            case WorkGranted():
                effects += self._on_granted(message, now)
            case SequencesHandedOver():
                effects += self._on_handed_over(message, now)
            case TrajectoriesEnded():
                self.has_news |= self._work.end(message.trajectories)
                self._num_ended += len(message.trajectories)
            case ProgressReported():
                effects += self._on_progress(message)
            case ProgressAcknowledged():
                if message.incarnation == self._incarnation:
                    self._progress_stream.receive(message)
            case LeaveRequested():
                effects += self._on_leave(message, now)
            case VersionAnnounced():
                self._weights.on_announced(message.weights)
            case WeightsServed():
                effects += self._weights.on_served(message)
            case WeightsInstalled():
                effects += self._on_installed(message.weights)
            case InstallRefused():
                effects += self._on_refused(message)
            case VersionMissing():
                self.has_news |= self._weights.on_missing(message.weights)
            case LoadMeasured():
                effects.append(self._report(message))
            case Tick():
                effects += self._on_tick(now)
            case _:
                raise TypeError(f"a rollout does not take {type(message).__name__}")
        self.has_news |= self._weights.switch_fresh_work()
        return [*effects, *self._sync(now), *self._weights.pull(now)]

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_granted(self, message: WorkGranted, now: float) -> list[Effect]:
        if message.incarnation != self._incarnation:
            return []
        self._work.confirm(message.taken)
        self._weights.on_hold_ordered(message.to_hold)
        effects: list[Effect] = []
        stopped = self._work.revoke(message.revoked)
        if stopped:
            effects.append(StopSequences(groups=tuple(stopped)))
        for order in message.handovers:
            group = self._work.hand_over(order)
            if group is not None:
                effects.append(
                    HandOverSequences(
                        group=group, host=order.host, host_incarnation=order.host_incarnation, weights=group.weights
                    )
                )
        effects += self._begin(message, now)
        self.has_news |= bool(stopped or message.handovers or message.reserved)
        self._has_left |= message.is_released and self._is_done_leaving
        if self._has_left:
            effects.append(self._report_left())
        return effects

    def _begin(self, message: WorkGranted, now: float) -> list[Effect]:
        if self._leaves_at is not None:
            return []
        self._work.reserve(message.reserved, self._weights.residents, now)
        tasks: list[GroupTask] = []
        effects: list[Effect] = []
        for task in message.tasks:
            weights = self._weights.of(task)
            if weights is None:
                continue
            if task.is_handed_over:
                handed = self._work.await_handover(task, weights, now)
                if handed is not None:
                    effects.append(ResumeSequences(handed=handed))
                continue
            fresh = self._work.begin(task, weights)
            if fresh is not None:
                tasks.append(replace(fresh, exact=weights) if self._weights.keeps_version else fresh)
        if tasks:
            effects.append(StartSequences(tasks=tuple(tasks)))
            self._weights.on_begun()
        return effects

    def _on_handed_over(self, message: SequencesHandedOver, now: float) -> list[Effect]:
        fits = self._weights.can_continue(message.weights)
        if message.incarnation != self._incarnation or not fits or not self._work.receive(message, now):
            return []
        self.has_news = True
        return [ResumeSequences(handed=message)]

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        overdue = self._work.give_up_waiting(now)
        if overdue:
            effects.append(StartSequences(tasks=tuple(overdue)))
        every_s = self._plan.stream_every_s
        if every_s and self._work.num_running and now - self._streamed_at >= every_s:
            self._streamed_at = now
            effects += self._progress_stream.ask(self._work.still_in_training())
        if self._leaves_at is not None and now >= self._leaves_at and not self._has_stopped:
            self._has_stopped = True
            stopped = self._work.stop_all()
            if stopped:
                effects.append(StopSequences(groups=tuple(stopped), reports=True))
        if self._has_left:
            effects.append(self._report_left())
        return effects

    def _on_progress(self, message: ProgressReported) -> list[Effect]:
        if message.is_stopped:
            self._work.clear_stopping()
            self._stopped, self.has_news = message.progress, True
            return []
        return self._progress_stream.stream(message.progress)

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_leave(self, message: LeaveRequested, now: float) -> list[Effect]:
        if message.incarnation != self._incarnation or self._leaves_at is not None:
            return []
        self._leaves_at, self.has_news = now + message.within_s, True
        self._weights.leave()
        if self._weights.fresh != NO_WEIGHTS:
            return []
        self._has_left = True  # data does not know this replica: without weights it sends no sync
        return [self._report_left()]

    @property
    def _is_done_leaving(self) -> bool:
        return self._leaves_at is not None and self._work.is_empty

    def _report_left(self) -> Effect:
        return Send(to=MANAGER, message=ReplicaLeft(replica=self._replica, incarnation=self._incarnation))

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_installed(self, weights: WeightsId) -> list[Effect]:
        is_first = self._weights.fresh == NO_WEIGHTS
        self._weights.on_installed(weights)
        self.has_news = True
        if not is_first:
            return []
        return [Send(to=DRIVER, message=ReplicaReady(replica=self._replica, incarnation=self._incarnation))]

    def _on_refused(self, message: InstallRefused) -> list[Effect]:
        self._weights.on_refused(message)
        if message.is_gone:
            return []
        fault = FaultReported(
            component=f"rollout/{self._replica}",
            message=f"version {message.weights} was rejected: {message.reason}",
            action="the replica keeps its weights and requests the version again",
        )
        return [Send(to=DRIVER, message=fault)]

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _count_wanted(self) -> int:
        """Includes the places of samples that will have ended before the next sync: short samples would otherwise leave
        places empty for longer than they held them."""
        if self._leaves_at is not None or not self._weights.admits_fresh_work:
            return 0
        return self._work.room_after(int(self._ends_per_s * GATHER_S))

    def _learn_pace(self, now: float) -> None:
        elapsed_s = max(GATHER_S, now - self._synced_at)
        weight = min(1.0, elapsed_s / PACE_OVER_S)
        self._ends_per_s += weight * (self._num_ended / elapsed_s - self._ends_per_s)
        self._num_ended = 0

    def _count_room(self) -> int:
        return 0 if self._leaves_at is not None else self._work.room

    def _sync(self, now: float) -> list[Effect]:
        if self._weights.fresh == NO_WEIGHTS or self._weights.is_installing:
            return []
        is_quiet_too_long = now - self._synced_at >= RESEND_AFTER_S
        is_gathered = not self._work.num_running or now - self._synced_at >= GATHER_S
        if not is_quiet_too_long and not (self.has_news and is_gathered):
            return []
        self._learn_pace(now)
        self.has_news, self._synced_at = False, now
        self._serial += 1
        message = ReplicaSynced(
            replica=self._replica,
            incarnation=self._incarnation,
            serial=self._serial,
            weights=self._weights.fresh,
            wants=self._count_wanted(),
            room=self._count_room(),
            groups=self._work.groups(),
            finished=self._work.to_deliver(all_of_them=is_quiet_too_long),
            older=tuple(sorted(self._weights.residents - {self._weights.fresh})),
            reserved=self._work.reserved(),
            ordered_weights=self._weights.ordered_weights,
            missing=self._weights.missing,
            is_leaving=self._leaves_at is not None,
            progress=self._stopped,
        )
        return [Send(to=DATA, message=message)]

    def _report(self, load: LoadMeasured) -> Effect:
        report = ReplicaReported(
            replica=self._replica,
            incarnation=self._incarnation,
            weights=self._weights.fresh,
            num_running=self._work.num_busy,
            kv_used=load.kv_used,
            num_tokens=load.num_tokens,
            older=tuple(
                ResidentLoad(weights=weights, num_running=self._work.num_busy_on(weights), kv_used=kv_used)
                for weights, kv_used in load.kv_by_weights
                if weights in self._weights.residents - {self._weights.fresh}
            ),
            has_free_slot=self._weights.has_free_slot,
        )
        return Send(to=MANAGER, message=report)
