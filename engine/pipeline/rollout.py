"""One replica: pulls weights, asks for work, runs it, hands over what ends.

          ┌─────── a slot is free, newer weights are there ────────────┐
          ▼                                                            │
    pull weights ──▶ install ──▶ sync: "I have room for n" ──▶ run what is granted ──▶ hand over
                                        ▲────────────────────────────────────┘

Invariants:
- where a trajectory keeps its version, weights are installed only into a slot that nothing runs on; what is fresh
  starts on the newest that is there, and what goes on, goes on on its own;
- the weights for fresh work and those in use are never more than there are slots;
- a finished trajectory is kept until data has confirmed it, and handed over again until then;
- while the last free slot waits for newer weights no fresh work takes it, unless it is told to hold those that it has;
- a grant that meant an earlier incarnation, an older lease, or weights it no longer has, starts nothing.

Longer than most: work, weights and speaking share one state, and each holds the others back.
"""

# Over budget: one state machine; what could leave it has (workload).

from dataclasses import replace
from typing import Final

from engine.pipeline.effects import (
    Effect,
    HandOverSequences,
    InstallWeights,
    ReportProgress,
    ResumeSequences,
    Send,
    StartSequences,
    StopSequences,
)
from engine.pipeline.messages import (
    DATA,
    DRIVER,
    MANAGER,
    InstallRefused,
    LeaveRequested,
    LoadMeasured,
    Message,
    ProgressReported,
    ProgressStreamed,
    ReplicaLeft,
    ReplicaReported,
    ReplicaSynced,
    SequencesHandedOver,
    Tick,
    TrajectoriesEnded,
    WeightsInstalled,
    WorkGranted,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupTask, ResidentLoad, SampleProgress
from engine.pipeline.relay_messages import VersionAnnounced, VersionMissing, WeightsServed, WeightsWanted, relay_address
from engine.pipeline.reports import FaultReported, ReplicaReady
from engine.pipeline.workload import Workload
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.schedule import Refresh, ReplicaWeightsView

# Short sequences end every few milliseconds; gathering them for this long bounds a replica to 20 messages a second.
GATHER_S: Final = 0.05
# What was not answered by then is said again.
RESEND_AFTER_S: Final = 2.0
# A replica that hears nothing of new versions asks: the announcement may have been lost.
RECHECK_AFTER_S: Final = 5.0


class RolloutBrain:
    def __init__(self, plan: Plan, *, replica: int, incarnation: int) -> None:
        self._plan = plan
        self._replica, self._incarnation = replica, incarnation
        self._relay = relay_address(plan.relay_of(replica))
        self._weights = NO_WEIGHTS
        """Those that fresh work starts on. Others may be in use beside them."""
        self._newest = NO_WEIGHTS
        self._hold: WeightsId | None = None
        self._missing: WeightsId | None = None
        self._work = Workload(max_batch=plan.max_batch, keeps_version=plan.schedule.keeps_version)
        self._pulling_since: float | None = None
        self._asked_relay_at = float("-inf")
        self._is_installing = False
        self._serial = 0
        self._synced_at = float("-inf")
        self._has_news = False
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
                self._has_news |= self._work.end(message.trajectories)
            case ProgressReported():
                effects += self._on_progress(message)
            case LeaveRequested():
                self._on_leave(message, now)
            case VersionAnnounced():
                self._on_announced(WeightsId(message.epoch, message.version))
            case WeightsServed():
                effects += self._on_served(message)
            case WeightsInstalled():
                effects += self._on_installed(WeightsId(message.epoch, message.version))
            case InstallRefused():
                effects += self._on_refused(message)
            case VersionMissing():
                self._on_missing(WeightsId(message.epoch, message.version))
            case LoadMeasured():
                effects.append(self._report(message))
            case Tick():
                effects += self._on_tick(now)
            case _:
                raise TypeError(f"a rollout does not take {type(message).__name__}")
        self._turn()
        return [*effects, *self._sync(now), *self._pull(now)]

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_granted(self, message: WorkGranted, now: float) -> list[Effect]:
        if message.incarnation != self._incarnation:
            return []
        self._work.confirm(message.taken)
        if message.hold != self._hold:
            self._hold, self._pulling_since = message.hold, None
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
        self._has_news |= bool(stopped or message.handovers or message.reserved)
        self._has_left |= message.is_released and self._is_done_leaving
        if self._has_left:
            effects.append(self._say_left())
        return effects

    def _begin(self, message: WorkGranted, now: float) -> list[Effect]:
        if self._leaves_at is not None:
            return []
        self._work.reserve(message.reserved, self._residents, now)
        tasks: list[GroupTask] = []
        effects: list[Effect] = []
        for task in message.tasks:
            weights = self._weights_for(task)
            if weights is None:
                continue
            if task.is_handed_over:
                handed = self._work.await_handover(task, weights, now)
                if handed is not None:
                    effects.append(ResumeSequences(handed=handed))
                continue
            fresh = self._work.begin(task, weights)
            if fresh is not None:
                tasks.append(replace(fresh, exact=weights) if self._keeps_version else fresh)
        if tasks:
            effects.append(StartSequences(tasks=tuple(tasks)))
            if not self._has_free_slot:
                self._pulling_since = None  # work came first; the weights are asked for again once it is done
        return effects

    def _on_handed_over(self, message: SequencesHandedOver, now: float) -> list[Effect]:
        fits = message.weights in self._residents or not (self._keeps_version or self._is_installing)
        if message.incarnation != self._incarnation or not fits or not self._work.receive(message, now):
            return []
        self._has_news = True
        return [ResumeSequences(handed=message)]

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        overdue = self._work.give_up_waiting(now)
        if overdue:
            effects.append(StartSequences(tasks=tuple(overdue)))
        every_s = self._plan.stream_every_s
        if every_s and self._work.num_running and now - self._streamed_at >= every_s:
            self._streamed_at = now
            effects.append(ReportProgress(groups=self._work.running()))
        if self._leaves_at is not None and now >= self._leaves_at and not self._has_stopped:
            self._has_stopped = True
            stopped = self._work.stop_all()
            if stopped:
                effects.append(StopSequences(groups=tuple(stopped), reports=True))
        if self._has_left:
            effects.append(self._say_left())
        return effects

    def _on_progress(self, message: ProgressReported) -> list[Effect]:
        if message.is_stopped:
            self._work.has_stopped()
            self._stopped, self._has_news = message.progress, True
            return []
        if not message.progress:
            return []
        streamed = ProgressStreamed(replica=self._replica, incarnation=self._incarnation, progress=message.progress)
        return [Send(to=DATA, message=streamed)]

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_leave(self, message: LeaveRequested, now: float) -> None:
        if message.incarnation == self._incarnation and self._leaves_at is None:
            self._leaves_at, self._has_news = now + message.within_s, True

    @property
    def _is_done_leaving(self) -> bool:
        return self._leaves_at is not None and self._work.is_empty

    def _say_left(self) -> Effect:
        return Send(to=MANAGER, message=ReplicaLeft(replica=self._replica, incarnation=self._incarnation))

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _keeps_version(self) -> bool:
        return self._plan.schedule.keeps_version

    @property
    def _has_free_slot(self) -> bool:
        return len(self._work.in_use) < self._plan.weight_slots

    @property
    def _residents(self) -> frozenset[WeightsId]:
        """What work may be for. While others are being installed, those in use: the rest may be overwritten."""
        if not self._is_installing:
            return self._work.in_use | {self._weights} if self._keeps_version else frozenset({self._weights})
        return self._work.in_use if self._keeps_version else frozenset()

    def _weights_for(self, task: GroupTask) -> WeightsId | None:
        """Those that this task runs on; None: not here. What comes late of a group goes to the rest of it."""
        if not self._keeps_version and task.exact is None:
            return self._weights
        weights = task.exact or self._work.weights_of(task.key) or self._weights
        return weights if weights in self._residents else None

    def _turn(self) -> None:
        """Fresh work starts on weights that are here already, where those are the wanted ones."""
        wanted = self._newest if self._hold is None else self._hold
        is_step = wanted > self._weights if self._hold is None else wanted != self._weights
        if is_step and wanted in self._work.in_use and not self._is_installing:
            self._weights, self._has_news = wanted, True

    def _wanted(self) -> WeightsId | None:
        """The weights to install next; None to keep what is there."""
        if self._hold is not None:
            differs = self._hold not in (self._weights, self._missing)
            return self._hold if differs and self._has_free_slot else None
        return self._newest if self._refresh() == "install" else None

    def _refresh(self) -> Refresh:
        view = ReplicaWeightsView(weights=self._weights, newest=self._newest, has_free_slot=self._has_free_slot)
        return self._plan.schedule.refresh(view)

    def _pull(self, now: float) -> list[Effect]:
        if self._is_installing or self._leaves_at is not None:
            return []
        wanted = self._wanted()
        if wanted is None:
            self._pulling_since = None
            if now - self._asked_relay_at < RECHECK_AFTER_S:
                return []
        elif self._pulling_since is not None and now - self._pulling_since < RESEND_AFTER_S:
            return []
        else:
            self._pulling_since = now
        self._asked_relay_at = now
        exact = self._hold if wanted is not None else None
        message = WeightsWanted(
            replica=self._replica,
            incarnation=self._incarnation,
            held=self._weights.version,
            held_epoch=self._weights.epoch,
            exact=None if exact is None else exact.version,
            exact_epoch=None if exact is None else exact.epoch,
        )
        return [Send(to=self._relay, message=message)]

    def _on_announced(self, weights: WeightsId) -> None:
        if weights > self._newest:
            self._newest, self._pulling_since = weights, None

    def _on_served(self, message: WeightsServed) -> list[Effect]:
        served = message.manifest.id
        self._newest = max(self._newest, served)
        is_wanted = self._hold in (None, served) and served != self._weights
        is_newer = self._hold is not None or served > self._weights
        in_use = self._work.in_use
        has_place = self._has_free_slot and served not in in_use
        may_install = has_place or (self._hold is None and not self._keeps_version)
        if self._is_installing or self._leaves_at is not None or not (is_wanted and is_newer and may_install):
            return []
        self._is_installing = True
        return [
            InstallWeights(
                manifest=message.manifest,
                payload=message.payload,
                in_flight=self._plan.schedule.in_flight,
                keeps=tuple(sorted(in_use)) if self._keeps_version else (),
            )
        ]

    def _on_installed(self, weights: WeightsId) -> list[Effect]:
        is_first = self._weights == NO_WEIGHTS
        self._weights, self._is_installing, self._pulling_since = weights, False, None
        self._missing = None
        self._has_news = True
        if not self._keeps_version:
            self._work.carry_on(weights)
        if not is_first:
            return []
        return [Send(to=DRIVER, message=ReplicaReady(replica=self._replica, incarnation=self._incarnation))]

    def _on_refused(self, message: InstallRefused) -> list[Effect]:
        self._is_installing = False  # asked for again after RESEND_AFTER_S, as if it had never come
        if message.is_gone:
            self._pulling_since = None
            return []
        fault = FaultReported(
            component=f"rollout/{self._replica}",
            message=f"version {message.version} was refused: {message.reason}",
            action="kept the weights it had; asks the relay again",
        )
        return [Send(to=DRIVER, message=fault)]

    def _on_missing(self, weights: WeightsId) -> None:
        if weights == self._hold:
            self._missing = weights
            self._has_news = True

    # ── speaking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _wants(self) -> int:
        if not self._keeps_version:
            return self._room()
        refresh = "keep" if self._hold is not None else self._refresh()
        would_fill_it = self._weights not in self._work.in_use
        is_due = refresh == "drain" or (refresh == "install" and would_fill_it)
        return 0 if is_due else self._room()

    def _room(self) -> int:
        return 0 if self._leaves_at is not None else self._work.room

    def _sync(self, now: float) -> list[Effect]:
        if self._weights == NO_WEIGHTS or self._is_installing:
            return []
        is_quiet_too_long = now - self._synced_at >= RESEND_AFTER_S
        is_gathered = not self._work.num_running or now - self._synced_at >= GATHER_S
        if not is_quiet_too_long and not (self._has_news and is_gathered):
            return []
        self._has_news, self._synced_at = False, now
        self._serial += 1
        message = ReplicaSynced(
            replica=self._replica,
            incarnation=self._incarnation,
            serial=self._serial,
            weights=self._weights,
            wants=self._wants(),
            room=self._room(),
            holds=self._work.holds(),
            finished=self._work.to_hand_over(all_of_them=is_quiet_too_long),
            beside=tuple(sorted(self._residents - {self._weights})),
            reserved=self._work.reserved(),
            hold=self._hold,
            missing=self._missing,
            is_leaving=self._leaves_at is not None,
            progress=self._stopped,
        )
        return [Send(to=DATA, message=message)]

    def _report(self, load: LoadMeasured) -> Effect:
        report = ReplicaReported(
            replica=self._replica,
            incarnation=self._incarnation,
            version=self._weights.version,
            epoch=self._weights.epoch,
            num_running=self._work.num_busy,
            kv_used=load.kv_used,
            num_tokens=load.num_tokens,
            beside=tuple(
                ResidentLoad(weights=weights, num_running=self._work.num_busy_on(weights), kv_used=kv_used)
                for weights, kv_used in load.kv_by_weights
                if weights in self._residents and weights != self._weights
            ),
            has_free_slot=self._has_free_slot,
        )
        return Send(to=MANAGER, message=report)
