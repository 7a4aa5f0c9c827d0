"""The recorder: what the parts report becomes facts, in the order in which a job lives.

    provisioning → loading_weights → [PipelineReady] → evaluating → training → finalizing

Invariants:
- `PipelineReady` is recorded once, when the trainer and every replica of the start hold weights, or at the first step
  if that comes sooner: a job that trains is no longer starting;
- phases only go forward.
"""

import logging
from dataclasses import replace
from typing import Final

from engine.live.facts import from_reports as facts
from engine.live.process.code_version import code_version
from engine.pipeline.driver.finish import Finish
from engine.pipeline.messages.to_driver import (
    ActivitySpan,
    AnswersCounted,
    CheckpointReported,
    EvaluationReported,
    EvaluationStarted,
    FaultReported,
    LedgerReported,
    PartFinished,
    ReplicaObserved,
    ReplicaReady,
    ResizeReported,
    RunBroken,
    StepReported,
    ToDriver,
    TrainerPaused,
    TrainerReady,
    WeightsTaken,
)
from engine.pipeline.messages.to_manager import ReplicaReported
from engine.sinks.lines import LinesSaid
from engine.sinks.port import EventSink
from engine.spec.facts import CheckpointSaved, Phase, PhaseChanged, PipelineReady, ReplicasResized, RequestAcknowledged
from engine.spec.job import JobSpec

PHASES: Final[tuple[Phase, ...]] = ("provisioning", "loading_weights", "evaluating", "training", "finalizing")

# A page draws a replica's time by the second; ten facts a minute are cheap to ship and to keep.
TELL_EVERY_S: Final = 5.0
TELL_AT_LINES: Final = 400  # while nothing is observed yet, or when a part talks much

log = logging.getLogger(__name__)


class Recorder:
    def __init__(self, spec: JobSpec, sink: EventSink, *, start_step: int, num_replicas: int | None = None) -> None:
        """`num_replicas`: of the start; None: all of the spec's."""
        self._spec, self._sink = spec, sink
        self._start_step = start_step
        self._num_replicas = spec.rollout.replicas if num_replicas is None else num_replicas
        self._phase: Phase | None = None
        self._ready_replicas: set[int] = set()
        self._works = False
        self._num_parameters: int | None = None
        self.is_ready = False
        self._loads: dict[int, ReplicaReported] = {}
        self._observed: dict[int, ReplicaObserved] = {}
        self._seconds: dict[str, float] = {}
        self._taken: list[WeightsTaken] = []
        """By relays, since the step before."""
        self._told_at = float("-inf")
        self._evaluated: list[EvaluationReported] = []
        self._counted: AnswersCounted | None = None
        self._finish = Finish()
        self._said: list[LinesSaid] = []
        self.step = start_step
        self.ledger: dict[str, int] = {}
        self.broken: RunBroken | None = None
        self.paused: TrainerPaused | None = None
        self.num_progress = 0
        """Grows whenever anything moved."""

    @property
    def is_finished(self) -> bool:
        return self._finish.is_over

    def enter(self, phase: Phase) -> None:
        """Only ever forward: the last step's report may come after data has begun the last evaluation."""
        if self._phase is None or PHASES.index(phase) > PHASES.index(self._phase):
            self._phase = phase
            self._sink.record(PhaseChanged(phase=phase))
            log.info("phase=%s step=%d", phase, self.step)

    def on_load(self, load: ReplicaReported) -> None:
        before = self._loads.get(load.replica)
        if before is None or before.num_tokens != load.num_tokens or before.weights != load.weights:
            self.num_progress += 1
        self._loads[load.replica] = load

    def forget_load(self, replica: int) -> None:
        self._loads.pop(replica, None)

    def on_report(self, report: ToDriver | LinesSaid) -> None:
        if isinstance(report, LinesSaid):  # whoever talks need not move
            self._said.append(report)
            if sum(len(said.lines) for said in self._said) >= TELL_AT_LINES:
                self._tell_lines()
            return
        self.num_progress += 1
        self._finish.on_report(report)
        match report:
            case TrainerReady():
                self._num_parameters = report.num_parameters
                self._check_ready()
            case ReplicaReady():
                self._ready_replicas.add(report.replica)
                self._check_ready()
            case ReplicaObserved():
                self._on_observed(report)
            case StepReported():
                self._on_step(report)
            case EvaluationStarted():
                self.enter("evaluating" if self._spec.only_evaluates else "finalizing")
            case EvaluationReported():
                if report in self._evaluated:  # data says its reports again after a recovery
                    return
                self._evaluated.append(report)
                if self._spec.only_evaluates:
                    self._on_work()
                self._sink.record(facts.evaluated(report))
                log.info("evaluated version=%d reward_mean=%.3f", report.weights.version, report.reward_mean)
            case AnswersCounted():
                self._on_counted(report)
            case CheckpointReported():
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
            case FaultReported():
                log.warning("fault component=%s message=%s action=%s", report.component, report.message, report.action)
                self._sink.record(facts.fault_detected(report))
                self._tell_lines()
            case LedgerReported():
                self.ledger = report.counts
            case WeightsTaken():
                self._taken.append(report)
            case TrainerPaused():
                self.paused = report
            case ResizeReported():
                self._on_resized(report)
            case PartFinished():
                self._tell_lines()
            case RunBroken():
                self.broken = self.broken or report
                self._tell_lines()

    def _on_counted(self, counted: AnswersCounted) -> None:
        if counted != self._counted:  # data that was started again says what it finds in its log
            self._counted = counted
            self._sink.record(facts.prompts_answered(counted))

    def _check_ready(self) -> None:
        if self.is_ready or self._num_parameters is None:
            return
        if not self._works and not self._ready_replicas.issuperset(range(self._num_replicas)):
            return
        self.is_ready = True
        num_ready = max(1, len(self._ready_replicas))  # one has worked, though its own word may come later
        num_replicas = min(num_ready, self._num_replicas)
        self._sink.record(PipelineReady(num_replicas=num_replicas, num_parameters=self._num_parameters))
        if self.step == self._start_step:
            self.enter("evaluating" if self._start_step == 0 or self._spec.only_evaluates else "training")

    def _on_work(self) -> None:
        self._works = True
        self._check_ready()

    def acknowledge(self, request_id: str) -> None:
        self._sink.record(RequestAcknowledged(request_id=request_id))

    def _on_resized(self, report: ResizeReported) -> None:
        log.info("replicas=%d step=%d", report.replicas, self.step)
        self._sink.record(ReplicasResized(replicas=report.replicas))
        self._num_replicas = min(self._num_replicas, report.replicas)
        self._check_ready()

    def _on_step(self, report: StepReported) -> None:
        self._on_work()
        self.enter("training")
        self.step = report.step
        self._sink.record(facts.step_trained(report, {**self._rollout_metrics(), **self._weights_metrics()}))
        for sampled in facts.trajectories_sampled(report):
            self._sink.record(sampled)
        log.info("step=%d reward_mean=%.3f", report.step, report.metrics.get("reward/mean", float("nan")))

    def _on_observed(self, observed: ReplicaObserved) -> None:
        """Gathered until every replica has said something, so that a fact is a picture of all."""
        self.num_progress -= 1  # it comes every second, whether anything moves or not
        for span in observed.spans:
            self._seconds[span.doing] = self._seconds.get(span.doing, 0.0) + span.ended_at - span.started_at
        known = self._observed.get(observed.replica)
        if known is not None and known.incarnation == observed.incarnation:
            observed = replace(observed, spans=_joined(known, observed))
        self._observed[observed.replica] = observed
        if observed.observed_at - self._told_at >= TELL_EVERY_S:
            self._told_at = observed.observed_at
            self._sink.record(facts.replicas_observed([self._observed[key] for key in sorted(self._observed)]))
            self._observed = {}
            self._tell_lines()

    def _tell_lines(self) -> None:
        """One fact a component, so that many parts that say little cost little."""
        said, self._said = self._said, []
        for fact in facts.log_lines(said):
            self._sink.record(fact)

    def _activity(self) -> dict[str, float]:
        """Of the replicas' time since the step before, the fraction by what they did."""
        seconds, self._seconds = self._seconds, {}
        whole = sum(seconds.values())
        return {f"rollout/time_{doing}": spent / whole for doing, spent in seconds.items()} if whole > 0 else {}

    def _weights_metrics(self) -> dict[str, float]:
        """Among relays: what the trainer's copy costs is `trainer/handover_s`."""
        taken, self._taken = self._taken, []
        travelled = [each for each in taken if each.by != "copy"]
        if not travelled:
            return {}
        return {
            "weights/bytes": float(sum(each.num_bytes for each in travelled)),
            "weights/slowest_relay_s": max(each.seconds for each in travelled),
            "weights/by_delta": sum(each.by == "delta" for each in travelled) / len(travelled),
        }

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


def _joined(before: ReplicaObserved, now: ReplicaObserved) -> tuple[ActivitySpan, ...]:
    """Both by the clock of the same process."""
    last, first = before.spans[-1:], now.spans[:1]
    if last and first and last[0].doing == first[0].doing:
        middle = ActivitySpan(doing=last[0].doing, started_at=last[0].started_at, ended_at=first[0].ended_at)
        return (*before.spans[:-1], middle, *now.spans[1:])
    return (*before.spans, *now.spans)
