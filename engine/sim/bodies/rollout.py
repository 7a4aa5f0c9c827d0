"""A replica's simulated body: continuous batching by arithmetic. A sample's end is scheduled when it begins to run, and
rescheduled whenever something delays it.

Invariants:
- at most `max_batch` samples run; the others wait in order of arrival;
- every token records the weights that wrote it: those of its sample's slot, of which there are `weight_slots`;
- a token's route is its byte again, and is there once the next token is: the model has read it then.
"""

# Over budget: one body, whose samples, moves and weights depend on each other.

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from engine.pipeline.effects import (
    Effect,
    HandOverSequences,
    InstallWeights,
    ReportProgress,
    ResumeSequences,
    StartSequences,
    StopSequences,
)
from engine.pipeline.messages.addresses import DRIVER, rollout_address
from engine.pipeline.messages.to_rollout import (
    InstallRefused,
    LoadMeasured,
    ProgressReported,
    SequencesHandedOver,
    TrajectoriesEnded,
    WeightsInstalled,
)
from engine.pipeline.packed import Bytes, Floats, Ints
from engine.pipeline.records import (
    AcknowledgedProgress,
    Failure,
    HeldGroup,
    SampleKey,
    SampleProgress,
    Trajectory,
    TrajectoryContent,
    VersionRun,
)
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.sim.bodies.data_and_trainer import After, Later, Post, Work
from engine.sim.bodies.self_report import observed
from engine.sim.chance import Chance
from engine.sim.oracle.pipeline import demand, words
from engine.sim.setting import ASK_AGAIN_S, Setting


@dataclass(slots=True, kw_only=True)
class Sequence:
    key: SampleKey
    lease: int
    num_total: int
    num_done: int
    runs: list[VersionRun]
    weights: WeightsId
    packed_tokens: bytearray
    """One byte per token, which encodes the life of the sample that wrote it and its position."""
    life: int
    acknowledged: AcknowledgedProgress | None = None
    hangs: bool = False
    is_running: bool = False
    since: float = 0.0
    """The moment at which the token after `num_done` began."""
    plan: int = 0
    """The number of the latest scheduled end; earlier ones are void."""

    @property
    def routes(self) -> bytes:
        return bytes(self.packed_tokens[:-1])


class RolloutBody:
    def __init__(
        self,
        setting: Setting,
        *,
        replica: int,
        incarnation: int,
        clock: Callable[[], float],
        later: Later,
        after: After,
        work: Work,
        post: Post,
    ) -> None:
        self._setting, self._replica, self._incarnation = setting, replica, incarnation
        self._costs, self._oracle = setting.costs, setting.oracle
        self._clock, self._later, self._after, self._work, self._post = clock, later, after, work, post
        self._weights = NO_WEIGHTS
        """The weights installed last."""
        self._slots: set[WeightsId] = set()
        self._held: dict[SampleKey, Sequence] = {}
        self._waiting: deque[SampleKey] = deque()
        self._num_running = self._num_tokens = 0
        self._paused_until = 0.0

    def perform(self, effect: Effect) -> None:
        match effect:
            case StartSequences():
                for task in effect.tasks:
                    weights = self._slot_of(task.exact)
                    self._oracle.on_begin(task, by=self._replica, weights=weights)
                    progress = {known.key.sample: known for known in task.progress}
                    for sample in task.samples:
                        key = SampleKey(group=task.key, sample=sample)
                        self._begin(key, task.lease, progress.get(sample), weights, prefill=True)
            case ResumeSequences():
                self._resume(effect.handed)
            case StopSequences():
                stopped = self._take_out(effect.groups)
                if effect.reports:
                    self._later(0.0, ProgressReported(progress=tuple(map(_progress, stopped)), is_stopped=True))
            case HandOverSequences():
                self._hand_over(effect)
            case ReportProgress():
                self._report(effect.acknowledged)
            case InstallWeights():
                self._install(effect)
            case _:
                raise TypeError(f"a rollout's body does not do {type(effect).__name__}")

    def measure(self) -> LoadMeasured:
        now = self._clock()
        num_tokens = self._num_tokens + sum(self._num_new(sequence, now) for sequence in self._held.values())
        version, num_open = self._weights.version, len(self._held)
        self._post(DRIVER, observed(self._replica, self._incarnation, version, num_tokens, num_open=num_open, at=now))
        capacity = self._setting.plan.max_batch * self._costs.max_tokens / 2
        kept = dict.fromkeys(self._slots, 0)
        for sequence in self._held.values():
            kept[sequence.weights] += self._done_by(sequence, now)
        return LoadMeasured(
            kv_used=min(1.0, sum(kept.values()) / capacity),
            num_tokens=num_tokens,
            kv_by_weights=tuple((weights, min(1.0, kept[weights] / capacity)) for weights in sorted(kept)),
        )

    # ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _slot_of(self, exact: WeightsId | None) -> WeightsId:
        weights = exact if exact is not None and self._setting.plan.schedule.keeps_version else self._weights
        demand(weights in self._slots, f"work for {weights}, but the slots hold {self._slots}")
        return weights

    def _begin(
        self, key: SampleKey, lease: int, known: SampleProgress | None, weights: WeightsId, *, prefill: bool
    ) -> None:
        demand(key not in self._held, f"{key} started twice on one replica")
        setting = self._setting
        hangs = False
        if setting.faults.hangs and key not in setting.hung:
            hangs = Chance(setting.seed, f"hangs/{key}").happens(setting.faults.hangs)
            setting.hung |= {key} if hangs else set()
        sequence = Sequence(
            key=key,
            lease=lease,
            num_total=self._costs.num_tokens(setting.seed, key),
            num_done=0 if known is None else known.num_tokens,
            runs=[] if known is None else list(known.runs),
            weights=weights,
            packed_tokens=bytearray() if known is None else bytearray(known.packed_tokens),
            life=self._oracle.on_life(key, known),
            hangs=hangs,
        )
        self._held[key] = sequence
        delay_s = sequence.num_done * self._costs.prefill_s if prefill else 0.0
        if self._num_running < setting.plan.max_batch:
            self._run(sequence, delay_s)
        else:
            self._waiting.append(key)

    def _run(self, sequence: Sequence, delay_s: float = 0.0) -> None:
        self._num_running += 1
        sequence.is_running = True
        self._plan_end(sequence, max(self._clock(), self._paused_until) + delay_s)

    def _plan_end(self, sequence: Sequence, since: float) -> None:
        sequence.since = since
        sequence.plan += 1
        if sequence.hangs:
            return
        plan = sequence.plan
        ends_at = since + (sequence.num_total - sequence.num_done) * self._costs.token_s
        self._after(max(0.0, ends_at - self._clock()), lambda: self._end(sequence, plan))

    def _end(self, sequence: Sequence, plan: int) -> None:
        if sequence.plan != plan or self._held.get(sequence.key) is not sequence:
            return
        if not self._setting.environment_answers(sequence.key):
            self._after(ASK_AGAIN_S, lambda: self._end(sequence, plan))
            return
        self._write(sequence, sequence.num_total - sequence.num_done)
        self._remove(sequence)
        self._next_waiting()
        self._later(0.0, TrajectoriesEnded(trajectories=(self._trajectory(sequence),)))

    def _next_waiting(self) -> None:
        while self._waiting and self._num_running < self._setting.plan.max_batch:
            self._run(self._held[self._waiting.popleft()])

    def _remove(self, sequence: Sequence) -> None:
        del self._held[sequence.key]
        sequence.plan += 1
        if sequence.is_running:
            self._num_running -= 1
        else:
            self._waiting.remove(sequence.key)
        self._oracle.on_stopped(sequence.key, sequence.lease, by=self._replica)

    def _trajectory(self, sequence: Sequence) -> Trajectory:
        key, setting = sequence.key, self._setting
        failure: Failure | None = None
        if setting.faults.grader_fails and Chance(setting.seed, f"grader/{key}").happens(setting.faults.grader_fails):
            failure = Failure(kind="error", reason="the grader broke")
        oldest = min(run.weights for run in sequence.runs)
        is_signal = key.group.ordinal % 5 != 0
        return Trajectory(
            key=key,
            weights=oldest,
            runs=tuple(sequence.runs) if len(sequence.runs) > 1 else (),
            reward=float(key.sample % 2) if is_signal else 1.0,
            num_tokens=sequence.num_total,
            failure=failure,
            content=None if key.group.evaluation is not None else self._content(sequence),
        )

    def _content(self, sequence: Sequence) -> TrajectoryContent:
        """Its routes alone, without those that data has acknowledged."""
        known = sequence.acknowledged or AcknowledgedProgress(key=sequence.key, sample_run=0)
        self._oracle.on_routed(sequence.key, sequence.routes)
        return TrajectoryContent(
            prompt_ids=Ints(),
            response_ids=Ints(),
            logprobs=Floats(),
            prompt_text="",
            response_text="",
            remark="",
            routes=Bytes(sequence.routes[known.num_route_bytes :]),
            routes_since=known.num_route_bytes,
            sample_run=known.sample_run,
        )

    def _done_by(self, sequence: Sequence, now: float) -> int:
        if not sequence.is_running or now <= sequence.since:
            return sequence.num_done
        ran = int((now - sequence.since) / self._costs.token_s + 1e-9)
        return min(sequence.num_total - 1, sequence.num_done + ran)

    def _num_new(self, sequence: Sequence, now: float) -> int:
        return self._done_by(sequence, now) - sequence.num_done

    def _advance(self, sequence: Sequence) -> None:
        """Writes the sequence's tokens up to now."""
        now = self._clock()
        num_new = self._num_new(sequence, now)
        if num_new > 0:
            self._write(sequence, num_new)
            sequence.since = now

    def _write(self, sequence: Sequence, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        sequence.packed_tokens += words(sequence.life, sequence.num_done, sequence.num_done + num_tokens)
        sequence.num_done += num_tokens
        last = sequence.runs[-1] if sequence.runs else None
        if last is not None and last.weights == sequence.weights:
            sequence.runs[-1] = VersionRun(weights=sequence.weights, num_tokens=last.num_tokens + num_tokens)
        else:
            sequence.runs.append(VersionRun(weights=sequence.weights, num_tokens=num_tokens))

    # ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_out(self, groups: Iterable[HeldGroup]) -> list[Sequence]:
        keys = [SampleKey(group=group.key, sample=sample) for group in groups for sample in group.samples]
        taken = [self._held[key] for key in keys if key in self._held]
        for sequence in taken:
            self._advance(sequence)
            self._remove(sequence)
        self._next_waiting()
        return taken

    def _hand_over(self, effect: HandOverSequences) -> None:
        taken = self._take_out([effect.group])
        handed = SequencesHandedOver(
            incarnation=effect.host_incarnation,
            key=effect.group.key,
            lease=effect.group.lease,
            weights=effect.weights,
            progress=tuple(map(_progress, taken)),
            payload="kv",
        )
        self._post(rollout_address(effect.host), handed)

    def _resume(self, handed: SequencesHandedOver) -> None:
        weights = self._slot_of(handed.weights)
        self._oracle.on_resume(handed, by=self._replica, weights=weights, num_running=self._num_running)
        for known in handed.progress:
            self._begin(known.key, handed.lease, known, weights, prefill=handed.payload is None)

    def _report(self, acknowledged: Iterable[AcknowledgedProgress]) -> None:
        progress: list[SampleProgress] = []
        for each in acknowledged:
            sequence = self._held.get(each.key)
            if sequence is not None:
                self._advance(sequence)
                sequence.acknowledged = each
                progress.append(replace(_progress(sequence, acknowledged=each), sample_run=each.sample_run))
        self._later(0.0, ProgressReported(progress=tuple(progress)))

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _install(self, effect: InstallWeights) -> None:
        weights = effect.manifest.weights
        over = effect.over
        if over is None and len(self._slots) >= self._setting.plan.weight_slots:
            over = min(self._slots.difference(effect.keeps), default=None)
            demand(over is not None, f"no slot for {weights} in addition to {effect.keeps}")
        in_use = {sequence.weights for sequence in self._held.values()}
        self._oracle.on_install(over=over, in_use=in_use, weights=weights, carries_on=effect.over is not None)
        if effect.payload != effect.manifest.chunk_hashes:
            refused = InstallRefused(weights=weights, reason="a chunk has another hash")
            self._hold_up(self._work("install", self._costs.install_s, lambda: refused))
            return
        for sequence in self._held.values():
            self._advance(sequence)
            if not self._setting.plan.schedule.keeps_version or sequence.weights == effect.over:
                sequence.weights = weights
        self._slots = {weights} | self._slots - {over}
        self._weights = weights
        prefill_s = 0.0
        if effect.in_flight == "reprefill":
            prefill_s = self._costs.prefill_s * sum(sequence.num_done for sequence in self._held.values())
        installed = WeightsInstalled(weights=weights)
        self._hold_up(self._work("install", self._costs.install_s, lambda: installed) + prefill_s)

    def _hold_up(self, for_s: float) -> None:
        now = self._clock()
        self._paused_until = now + for_s
        for sequence in self._held.values():
            self._advance(sequence)
            if sequence.is_running:
                self._plan_end(sequence, self._paused_until)


def _progress(sequence: Sequence, *, acknowledged: AcknowledgedProgress | None = None) -> SampleProgress:
    since, routes_since = (acknowledged.num_tokens, acknowledged.num_route_bytes) if acknowledged else (0, 0)
    runs, at = [], 0
    for run in sequence.runs:
        num_new = min(run.num_tokens, at + run.num_tokens - since)
        at += run.num_tokens
        if num_new > 0:
            runs.append(VersionRun(weights=run.weights, num_tokens=num_new))
    return SampleProgress(
        key=sequence.key,
        num_tokens=sequence.num_done,
        runs=tuple(runs),
        packed_tokens=bytes(sequence.packed_tokens[since:]),
        packed_routes=sequence.routes[routes_since:],
        num_route_bytes=len(sequence.routes),
        since=since,
        routes_since=routes_since,
    )
