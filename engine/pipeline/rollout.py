"""One replica: pulls weights, asks for work, runs it, hands over what ends.

          ┌────────── nothing runs, newer weights are there ───────────┐
          ▼                                                            │
    pull weights ──▶ install ──▶ sync: "I have room for n" ──▶ run what is granted ──▶ hand over
                                        ▲────────────────────────────────────┘

Invariants:
- with a draining schedule weights are installed only while nothing runs: a trajectory has one version;
- a finished trajectory is kept until data has confirmed it, and handed over again until then;
- with newer weights in sight it asks for no more work, unless an evaluation holds it at its version;
- a grant that meant an earlier incarnation, or weights it no longer has, starts nothing.
"""

from typing import Final

from engine.pipeline.effects import Effect, InstallWeights, Send, StartSequences
from engine.pipeline.messages import (
    DATA,
    DRIVER,
    MANAGER,
    RELAY,
    InstallRefused,
    LoadMeasured,
    Message,
    ReplicaReported,
    ReplicaSynced,
    Tick,
    TrajectoriesEnded,
    VersionAnnounced,
    VersionMissing,
    WeightsInstalled,
    WeightsServed,
    WeightsWanted,
    WorkGranted,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupKey, GroupTask, SampleKey, Trajectory
from engine.pipeline.reports import FaultReported, ReplicaReady
from engine.policy.schedule import ReplicaWeightsView

# Short sequences end every few milliseconds; gathering them for this long bounds a replica to 20 messages a second.
GATHER_S: Final = 0.05
# What was not answered by then is said again.
RESEND_AFTER_S: Final = 2.0
# A replica that hears nothing of new versions asks: the announcement may have been lost.
RECHECK_AFTER_S: Final = 5.0
NO_VERSION: Final = -1


class RolloutBrain:
    def __init__(self, plan: Plan, *, replica: int, incarnation: int) -> None:
        self._plan = plan
        self._replica = replica
        self._incarnation = incarnation
        self._version = NO_VERSION
        self._newest = NO_VERSION
        self._evaluate_at: int | None = None
        self._missing_version: int | None = None
        self._running: dict[GroupKey, set[int]] = {}
        self._unconfirmed: dict[SampleKey, Trajectory] = {}
        self._unsent: list[Trajectory] = []
        self._pulling_since: float | None = None
        self._asked_relay_at = float("-inf")
        self._is_installing = False
        self._serial = 0
        self._synced_at = float("-inf")
        self._has_news = False

    def handle(self, message: Message, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match message:
            case WorkGranted():
                effects += self._on_granted(message)
            case TrajectoriesEnded():
                self._on_ended(message.trajectories)
            case VersionAnnounced():
                self._on_announced(message.version)
            case WeightsServed():
                effects += self._on_served(message)
            case WeightsInstalled():
                effects += self._on_installed(message.version)
            case InstallRefused():
                effects += self._on_refused(message)
            case VersionMissing():
                self._on_missing(message.version)
            case LoadMeasured():
                effects.append(self._report(message))
            case Tick():
                pass
            case _:
                raise TypeError(f"a rollout does not take {type(message).__name__}")
        return [*effects, *self._sync(now), *self._pull(now)]

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_granted(self, message: WorkGranted) -> list[Effect]:
        if message.incarnation != self._incarnation:
            return []
        for key in message.taken:
            self._unconfirmed.pop(key, None)
        if message.evaluate_at != self._evaluate_at:
            self._evaluate_at, self._pulling_since = message.evaluate_at, None
        tasks = [] if self._is_installing else [fresh for task in message.tasks if (fresh := self._fresh(task))]
        if not tasks:
            return []
        self._pulling_since = None  # work came first; the weights are asked for again once it is done
        for task in tasks:
            self._running.setdefault(task.key, set()).update(task.samples)
        return [StartSequences(tasks=tuple(tasks))]

    def _fresh(self, task: GroupTask) -> GroupTask | None:
        """What of this is neither running nor done here; None if nothing, or if other weights are wanted."""
        if task.exact_version not in (None, self._version):
            return None
        running = self._running.get(task.key, set())
        samples = tuple(
            sample
            for sample in task.samples
            if sample not in running and SampleKey(group=task.key, sample=sample) not in self._unconfirmed
        )
        return GroupTask(key=task.key, samples=samples, exact_version=task.exact_version) if samples else None

    def _on_ended(self, trajectories: tuple[Trajectory, ...]) -> None:
        for trajectory in trajectories:
            key = trajectory.key
            running = self._running.get(key.group)
            if running is None or key.sample not in running:
                continue
            running.discard(key.sample)
            if not running:
                del self._running[key.group]
            self._unconfirmed[key] = trajectory
            self._unsent.append(trajectory)
            self._has_news = True

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _wanted_version(self) -> int | None:
        """The version to install next; None to keep what is there."""
        if self._evaluate_at is not None:
            differs = self._evaluate_at != self._version and self._evaluate_at != self._missing_version
            return self._evaluate_at if differs and not self._running else None
        view = ReplicaWeightsView(version=self._version, newest=self._newest, num_running=self._num_running)
        return self._newest if self._plan.schedule.refresh(view) == "install" else None

    def _pull(self, now: float) -> list[Effect]:
        if self._is_installing:
            return []
        wanted = self._wanted_version()
        if wanted is None:
            self._pulling_since = None
            if now - self._asked_relay_at < RECHECK_AFTER_S:
                return []
        elif self._pulling_since is not None and now - self._pulling_since < RESEND_AFTER_S:
            return []
        else:
            self._pulling_since = now
        self._asked_relay_at = now
        exact = self._evaluate_at if wanted is not None else None
        message = WeightsWanted(replica=self._replica, incarnation=self._incarnation, held=self._version, exact=exact)
        return [Send(to=RELAY, message=message)]

    def _on_announced(self, version: int) -> None:
        if version > self._newest:
            self._newest, self._pulling_since = version, None

    def _on_served(self, message: WeightsServed) -> list[Effect]:
        self._newest = max(self._newest, message.version)
        is_wanted = self._evaluate_at in (None, message.version) and message.version != self._version
        is_newer = self._evaluate_at is not None or message.version > self._version
        may_install = not self._running or self._plan.schedule.in_flight == "continue"
        if self._is_installing or not (is_wanted and is_newer and may_install):
            return []
        self._is_installing = True
        return [InstallWeights(manifest=message.manifest, payload=message.payload)]

    def _on_installed(self, version: int) -> list[Effect]:
        is_first = self._version == NO_VERSION
        self._version, self._is_installing, self._pulling_since = version, False, None
        self._missing_version = None
        self._has_news = True
        if not is_first:
            return []
        return [Send(to=DRIVER, message=ReplicaReady(replica=self._replica, incarnation=self._incarnation))]

    def _on_refused(self, message: InstallRefused) -> list[Effect]:
        self._is_installing = False  # asked for again after RESEND_AFTER_S, as if it had never come
        fault = FaultReported(
            component=f"rollout/{self._replica}",
            message=f"version {message.version} was refused: {message.reason}",
            action="kept the weights it had; asks the relay again",
        )
        return [Send(to=DRIVER, message=fault)]

    def _on_missing(self, version: int) -> None:
        if version == self._evaluate_at:
            self._missing_version = version
            self._has_news = True

    # ── speaking ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _num_running(self) -> int:
        return sum(len(samples) for samples in self._running.values())

    def _wants(self) -> int:
        drains = self._evaluate_at is None and self._newest > self._version
        drains = drains and self._plan.schedule.in_flight == "drain"
        if self._version == NO_VERSION or self._is_installing or drains:
            return 0
        return max(0, self._plan.max_batch - self._num_running)

    def _sync(self, now: float) -> list[Effect]:
        if self._version == NO_VERSION or self._is_installing:
            return []
        is_quiet_too_long = now - self._synced_at >= RESEND_AFTER_S
        is_gathered = not self._running or now - self._synced_at >= GATHER_S
        if not is_quiet_too_long and not (self._has_news and is_gathered):
            return []
        finished = tuple(self._unconfirmed.values()) if is_quiet_too_long else tuple(self._unsent)
        self._unsent, self._has_news, self._synced_at = [], False, now
        self._serial += 1
        holds = dict.fromkeys([*self._running, *(key.group for key in self._unconfirmed)])
        message = ReplicaSynced(
            replica=self._replica,
            incarnation=self._incarnation,
            serial=self._serial,
            version=self._version,
            wants=self._wants(),
            holds=tuple(holds),
            finished=finished,
            evaluate_at=self._evaluate_at,
            missing_version=self._missing_version,
        )
        return [Send(to=DATA, message=message)]

    def _report(self, load: LoadMeasured) -> Effect:
        report = ReplicaReported(
            replica=self._replica,
            incarnation=self._incarnation,
            version=self._version,
            num_running=self._num_running,
            kv_used=load.kv_used,
            num_tokens=load.num_tokens,
        )
        return Send(to=MANAGER, message=report)
