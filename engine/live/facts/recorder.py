"""Records facts from the parts' reports and the announcements of the driver's brain. It decides nothing.

Invariants:
- a report that repeats the previous one (data repeats it after a recovery) is one fact;
- log lines precede the fact that ends a part or the run, and the replicas' last activity precedes the latter.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from engine.live.facts import from_reports as facts
from engine.live.facts.token_texts import Spell, no_texts
from engine.live.process.code_version import code_version
from engine.pipeline.data.ledger import ENDS
from engine.pipeline.effects import Acknowledge, AnnounceReady, AnnounceSize, EnterPhase
from engine.pipeline.failure_counts import NO_FAILURES
from engine.pipeline.messages.to_driver import (
    ActivitySpan,
    AnswersCounted,
    CheckpointReported,
    EvaluationReported,
    FaultReported,
    LedgerReported,
    PartFinished,
    ReadTrajectory,
    ReplicaObserved,
    RunBroken,
    SamplesEnded,
    StepReported,
    ToDriver,
    WeightsTaken,
)
from engine.pipeline.messages.to_manager import ReplicaReported
from engine.sinks.lines import TakenLines
from engine.sinks.port import EventSink
from engine.spec.facts import MAX_SPANS, CheckpointSaved

# A page draws a replica's time by the second; twelve facts a minute are cheap to ship and to store.
RECORD_EVERY_S: Final = 5.0
FLUSH_AT_LINES: Final = 400  # before the first observation, or when a part logs a lot

log = logging.getLogger(__name__)


class Recorder:
    def __init__(
        self,
        sink: EventSink,
        *,
        start_step: int,
        spell: Spell = no_texts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spell`: returns the texts of tokens."""
        self._sink, self._spell, self._clock = sink, spell, clock
        self._loads: dict[int, ReplicaReported] = {}
        self._observed: dict[int, ReplicaObserved] = {}
        """A replica's activity since its last fact."""
        self._received_at: dict[int, float] = {}
        """By this clock: other hosts' clocks differ."""
        self._received: set[int] = set()
        """Replicas with a report since the last fact about replicas."""
        self._last_recorded = -1
        self._seconds: dict[str, float] = {}
        self._taken: list[WeightsTaken] = []
        """By relays, since the previous step."""
        self._recorded_at = float("-inf")
        self._evaluated: list[EvaluationReported] = []
        self._counted: AnswersCounted | None = None
        self._lines: list[TakenLines] = []
        self.step = start_step
        self.checkpoint: CheckpointReported | None = None
        """The last reported one: the parts report in order, so every step before it was reported too."""
        self.ledger: dict[str, int] = {}
        self._failures = self._last_failures = NO_FAILURES
        """As last reported, and at the previous step."""
        self._last_ends: dict[str, int] | None = dict.fromkeys(ENDS, 0) if start_step == 0 else None
        """At the previous step. None: the attempt started from a checkpoint, whose counts are not its own."""

    def announce(self, announced: EnterPhase | AnnounceReady | AnnounceSize | Acknowledge) -> None:
        log.info("%s step=%d", _describe(announced), self.step)
        self._sink.record(facts.announced(announced))

    def on_load(self, load: ReplicaReported) -> None:
        self._loads[load.replica] = load

    def forget_load(self, replica: int) -> None:
        self._loads.pop(replica, None)

    def on_lines(self, lines: TakenLines) -> None:
        self._lines.append(lines)
        if sum(len(each.lines) for each in self._lines) >= FLUSH_AT_LINES:
            self.flush_lines()

    def on_report(self, report: ToDriver) -> None:
        match report:
            case ReplicaObserved():
                self._on_observed(report)
            case StepReported():
                self._on_step(report)
            case EvaluationReported():
                self._on_evaluated(report)
            case AnswersCounted():
                self._on_counted(report)
            case CheckpointReported():
                self._on_checkpoint(report)
            case FaultReported():
                log.warning("fault component=%s message=%s action=%s", report.component, report.message, report.action)
                self._sink.record(facts.fault_detected(report))
                self.flush_lines()
            case LedgerReported():
                self.ledger, self._failures = report.counts, report.failures
            case SamplesEnded():
                self._record_samples(report.step, report.to_read)
            case WeightsTaken():
                self._taken.append(report)
            case PartFinished() | RunBroken():
                self.flush_lines()

    def _on_evaluated(self, report: EvaluationReported) -> None:
        if report in self._evaluated:
            return
        self._evaluated.append(report)
        self._sink.record(facts.evaluated(report))
        log.info("evaluated version=%d reward_mean=%.3f", report.weights.version, report.reward_mean)

    def _on_checkpoint(self, report: CheckpointReported) -> None:
        self.checkpoint = report
        self._sink.record(
            CheckpointSaved(
                step=report.step,
                version=report.step,
                uri=report.uri,
                manifest_sha256=report.manifest_sha256,
                num_bytes=report.num_bytes,
                code_version=code_version(),
            )
        )

    def _on_counted(self, counted: AnswersCounted) -> None:
        if counted != self._counted:
            self._counted = counted
            self._sink.record(facts.prompts_answered(counted))

    def _on_step(self, report: StepReported) -> None:
        self.step = report.step
        metrics = {**self._rollout_metrics(), **self._weights_metrics(), **self._sample_metrics()}
        metrics |= self._failure_metrics()
        self._sink.record(facts.step_trained(report, metrics, ledger=self.ledger))
        self._record_samples(report.step, report.to_read)
        log.info("step=%d reward_mean=%.3f", report.step, report.metrics.get("reward/mean", float("nan")))

    def _record_samples(self, step: int, to_read: Sequence[ReadTrajectory]) -> None:
        for sampled in facts.trajectories_sampled(step, to_read, spell=self._spell):
            self._sink.record(sampled)

    def _on_observed(self, observed: ReplicaObserved) -> None:
        """Gathers reports for RECORD_EVERY_S, so that a fact shows all replicas."""
        for span in observed.spans:
            self._seconds[span.doing] = self._seconds.get(span.doing, 0.0) + span.ended_at - span.started_at
        known = self._observed.get(observed.replica)
        if known is not None and known.incarnation == observed.incarnation:
            observed = replace(observed, spans=_join_spans(known, observed))
        self._observed[observed.replica] = observed
        self._received_at[observed.replica] = self._clock()
        self._received.add(observed.replica)
        if observed.observed_at - self._recorded_at >= RECORD_EVERY_S:
            self._recorded_at = observed.observed_at
            self._record_replicas()
            self.flush_lines()

    def _record_replicas(self) -> None:
        """Replicas beyond the limit of one fact take turns, each with all its activity since its last turn."""
        received = sorted(self._received)
        in_turn = sorted(received, key=lambda replica: replica <= self._last_recorded)
        batch = in_turn[: facts.MAX_REPLICAS]
        num_replicas = max(len(self._loads), len(received))
        observed = [self._as_of_now(self._observed[each]) for each in sorted(batch)]
        self._sink.record(facts.replicas_observed(observed, num_replicas=num_replicas))
        self._observed = {each: self._observed[each] for each in in_turn[facts.MAX_REPLICAS :]}
        self._received, self._last_recorded = set(), batch[-1]

    def _as_of_now(self, observed: ReplicaObserved) -> ReplicaObserved:
        """A fact states how long ago its spans were."""
        age_s = self._clock() - self._received_at[observed.replica]
        return replace(observed, observed_at=observed.observed_at + age_s)

    def flush(self) -> None:
        """Records all gathered reports. Called before the last fact."""
        while self._observed:
            self._received = set(self._observed)
            self._record_replicas()
        self.flush_lines()

    def flush_lines(self) -> None:
        """One fact for each component, so that many quiet parts cost little."""
        lines, self._lines = self._lines, []
        for fact in facts.log_lines(lines):
            self._sink.record(fact)

    def _activity(self) -> dict[str, float]:
        """The fractions of the replicas' time since the previous step, by activity."""
        seconds, self._seconds = self._seconds, {}
        whole = sum(seconds.values())
        return {f"rollout/time_{doing}": spent / whole for doing, spent in seconds.items()} if whole > 0 else {}

    def _weights_metrics(self) -> dict[str, float]:
        """Traffic among relays; the cost of the trainer's copy is `trainer/handover_s`."""
        taken, self._taken = self._taken, []
        travelled = [each for each in taken if each.by != "copy"]
        if not travelled:
            return {}
        return {
            "weights/bytes": float(sum(each.num_bytes for each in travelled)),
            "weights/slowest_relay_s": max(each.seconds for each in travelled),
            "weights/by_delta": sum(each.by == "delta" for each in travelled) / len(travelled),
        }

    def _sample_metrics(self) -> dict[str, float]:
        """Ends of samples since the previous step, by data's last report. A restarted trainer takes some back."""
        if not self.ledger:
            return {}
        before, self._last_ends = self._last_ends, {end: self.ledger.get(end, 0) for end in ENDS}
        if before is None:
            return {}
        return {f"samples/{end}": float(max(0, num - before[end])) for end, num in self._last_ends.items()}

    def _failure_metrics(self) -> dict[str, float]:
        if not self.ledger:
            return {}
        before, self._last_failures = self._last_failures, self._failures
        return self._failures.since(before)

    def _rollout_metrics(self) -> dict[str, float]:
        loads = list(self._loads.values())
        if not loads:
            return {"rollout/replicas": 0.0}
        return {
            **self._activity(),
            "rollout/replicas": float(len(loads)),
            "rollout/kv_used": sum(load.kv_used for load in loads) / len(loads),
            "rollout/running": float(sum(load.num_running for load in loads)),
            "rollout/version_lag": sum(max(0, self.step - load.weights.version) for load in loads) / len(loads),
        }


def _join_spans(before: ReplicaObserved, now: ReplicaObserved) -> tuple[ActivitySpan, ...]:
    """The spans of both, which have the clock of the same process."""
    last, first = before.spans[-1:], now.spans[:1]
    if last and first and last[0].doing == first[0].doing:
        middle = ActivitySpan(doing=last[0].doing, started_at=last[0].started_at, ended_at=first[0].ended_at)
        return (*before.spans[:-1], middle, *now.spans[1:])[-MAX_SPANS:]
    return (*before.spans, *now.spans)[-MAX_SPANS:]


def _describe(announced: EnterPhase | AnnounceReady | AnnounceSize | Acknowledge) -> str:
    """The text for the job's log."""
    match announced:
        case EnterPhase(phase=phase):
            return f"phase={phase}"
        case AnnounceReady(num_replicas=replicas, num_parameters=parameters):
            return f"ready replicas={replicas} parameters={parameters}"
        case AnnounceSize(replicas=replicas):
            return f"resized replicas={replicas}"
        case Acknowledge(request_id=request):
            return f"done request={request}"
