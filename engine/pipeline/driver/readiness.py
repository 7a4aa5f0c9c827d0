"""Readiness of the pipeline, and the phases of a run.

    provisioning → loading_weights → [ready] → training → finalizing      a job that trains
                                             → evaluating                 one that only evaluates

Invariants:
- the first evaluation runs in parallel with training, so it has no phase of its own;
- the run becomes ready once: when the trainer and every initial replica hold weights, or at the first completed work if
  that comes sooner, since a job that trains is no longer starting;
- phases only go forward, and no phase after loading is entered before the run is ready.
"""

from typing import Final

from engine.pipeline.effects import AnnounceReady, Effect, EnterPhase
from engine.pipeline.messages.to_driver import (
    EvaluationReported,
    EvaluationStarted,
    ReplicaReady,
    StepReported,
    ToDriver,
    TrainerReady,
)
from engine.pipeline.plan import Plan
from engine.spec.facts import Phase

PHASES: Final[tuple[Phase, ...]] = ("provisioning", "loading_weights", "evaluating", "training", "finalizing")


class Readiness:
    def __init__(self, plan: Plan, *, num_replicas: int) -> None:
        """`num_replicas`: at the start."""
        self._plan, self._num_replicas = plan, num_replicas
        self._begins_with: Phase = "evaluating" if plan.only_evaluates else "training"
        self._phase: Phase = "loading_weights"
        self._ready_replicas: set[int] = set()
        self._num_parameters: int | None = None
        self._works = False
        self._is_closing = False
        self.is_ready = False

    def on_report(self, report: ToDriver) -> list[Effect]:
        match report:
            case TrainerReady():
                self._num_parameters = report.num_parameters
                return self._check()
            case ReplicaReady():
                self._ready_replicas.add(report.replica)
                return self._check()
            case StepReported():
                return [*self._on_work(), *self._enter("training")]
            case EvaluationReported() if self._plan.only_evaluates or self._is_closing:  # resumed after its last step
                return self._on_work()
            case EvaluationStarted() if not self._plan.only_evaluates:
                self._is_closing = True
                return self._enter("finalizing") if self.is_ready else []
            case _:
                return []

    def on_resized(self, replicas: int) -> list[Effect]:
        """Stops waiting for replicas that have left."""
        self._num_replicas = min(self._num_replicas, replicas)
        return self._check()

    def _on_work(self) -> list[Effect]:
        self._works = True
        return self._check()

    def _check(self) -> list[Effect]:
        if self.is_ready or self._num_parameters is None:
            return []
        if not self._works and not self._ready_replicas.issuperset(range(self._num_replicas)):
            return []
        self.is_ready = True
        num_ready = max(1, len(self._ready_replicas))  # one has worked, even if its own report is late
        num_replicas = min(num_ready, self._num_replicas)
        announced = AnnounceReady(num_replicas=num_replicas, num_parameters=self._num_parameters)
        return [announced, *self._enter("finalizing" if self._is_closing else self._begins_with)]

    def _enter(self, phase: Phase) -> list[Effect]:
        """Only forward: the last step's report may arrive after data has begun the last evaluation."""
        if PHASES.index(phase) <= PHASES.index(self._phase):
            return []
        self._phase = phase
        return [EnterPhase(phase=phase)]
