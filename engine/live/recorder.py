"""The recorder: what the parts report becomes facts, in the order in which a job lives.

    provisioning → loading_weights → [PipelineReady] → evaluating → training → finalizing

Invariants:
- `PipelineReady` is recorded once, when the trainer and every replica of the start hold weights;
- phases only go forward.
"""

import logging
from typing import Final

from engine.live import facts
from engine.pipeline.messages import ReplicaReported
from engine.pipeline.reports import (
    CheckpointReported,
    EvaluationReported,
    EvaluationStarted,
    FaultReported,
    LedgerReported,
    PartFinished,
    ReplicaReady,
    RunBroken,
    StepReported,
    ToDriver,
    TrainerReady,
)
from engine.sinks.port import EventSink
from engine.spec.facts import CheckpointSaved, Phase, PhaseChanged, PipelineReady
from engine.spec.job import JobSpec

PHASES: Final[tuple[Phase, ...]] = ("provisioning", "loading_weights", "evaluating", "training", "finalizing")

log = logging.getLogger(__name__)


class Recorder:
    def __init__(self, spec: JobSpec, sink: EventSink, *, start_step: int) -> None:
        self._spec, self._sink = spec, sink
        self._start_step = start_step
        self._phase: Phase | None = None
        self._ready_replicas: set[int] = set()
        self._num_parameters: int | None = None
        self.is_ready = False
        self._loads: dict[int, ReplicaReported] = {}
        self._finished: set[str] = set()
        self.step = start_step
        self.ledger: dict[str, int] = {}
        self.broken: RunBroken | None = None
        self.num_progress = 0
        """Grows whenever anything moved."""

    @property
    def is_finished(self) -> bool:
        return self._finished == {"trainer", "data"}

    def enter(self, phase: Phase) -> None:
        """Only ever forward: the last step's report may come after data has begun the last evaluation."""
        if self._phase is None or PHASES.index(phase) > PHASES.index(self._phase):
            self._phase = phase
            self._sink.record(PhaseChanged(phase=phase))
            log.info("phase=%s step=%d", phase, self.step)

    def on_load(self, load: ReplicaReported) -> None:
        before = self._loads.get(load.replica)
        if before is None or before.num_tokens != load.num_tokens or before.version != load.version:
            self.num_progress += 1
        self._loads[load.replica] = load

    def forget_load(self, replica: int) -> None:
        self._loads.pop(replica, None)

    def on_report(self, report: ToDriver) -> None:
        self.num_progress += 1
        match report:
            case TrainerReady():
                self._num_parameters = report.num_parameters
                self._check_ready()
            case ReplicaReady():
                self._ready_replicas.add(report.replica)
                self._check_ready()
            case StepReported():
                self._on_step(report)
            case EvaluationStarted():
                self.enter("finalizing")
            case EvaluationReported():
                self._sink.record(facts.evaluated(report))
                log.info("evaluated version=%d reward_mean=%.3f", report.version, report.reward_mean)
            case CheckpointReported():
                self._sink.record(
                    CheckpointSaved(
                        step=report.step,
                        version=report.step,
                        uri=report.uri,
                        manifest_sha256=report.manifest_sha256,
                        num_bytes=report.num_bytes,
                    )
                )
            case FaultReported():
                log.warning("fault component=%s message=%s action=%s", report.component, report.message, report.action)
                self._sink.record(facts.fault_detected(report))
            case LedgerReported():
                self.ledger = report.counts
            case PartFinished():
                self._finished.add(report.part)
            case RunBroken():
                self.broken = self.broken or report

    def _check_ready(self) -> None:
        if self.is_ready or self._num_parameters is None:
            return
        if len(self._ready_replicas) < self._spec.rollout.replicas:
            return
        self.is_ready = True
        self._sink.record(PipelineReady(num_replicas=self._spec.rollout.replicas, num_parameters=self._num_parameters))
        if self.step == self._start_step:
            self.enter("evaluating" if self._start_step == 0 else "training")

    def _on_step(self, report: StepReported) -> None:
        self.enter("training")
        self.step = report.step
        self._sink.record(facts.step_trained(report, self._rollout_metrics()))
        self._sink.record(facts.trajectories_sampled(report))
        log.info("step=%d reward_mean=%.3f", report.step, report.metrics.get("reward/mean", float("nan")))

    def _rollout_metrics(self) -> dict[str, float]:
        loads = list(self._loads.values())
        if not loads:
            return {"rollout/replicas": 0.0}
        return {
            "rollout/replicas": float(len(loads)),
            "rollout/kv_used": sum(load.kv_used for load in loads) / len(loads),
            "rollout/running": float(sum(load.num_running for load in loads)),
            "rollout/version_lag": sum(max(0, self.step - load.version) for load in loads) / len(loads),
        }
