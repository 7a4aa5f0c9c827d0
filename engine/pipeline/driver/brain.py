"""The driver: the run's progress, requests from outside, and the run's one end.

    parts ────reports────▶ readiness, phases, the end
    outside ──requests───▶ trainer, data, manager; acknowledged once they are complete
    time ────────────────▶ silent environment workers replaced; a stalled run ended

Invariants:
- a run has exactly one end, and nothing is decided after it;
- it succeeds only when trainer and data have finished with the newest trainer;
- a requested pause completes, or the run ends;
- near the end of its time the run pauses by itself, so that all trained steps are in a checkpoint;
- the outcome depends neither on the order of messages from different parts nor on duplicates;
- time in which the driver itself did not run (frozen, busy) counts as no part's silence and no stall.
"""

from typing import Final

from engine.pipeline.driver.deadline import Deadline
from engine.pipeline.driver.environment import EnvironmentWatch
from engine.pipeline.driver.readiness import Readiness
from engine.pipeline.driver.requests import Requests
from engine.pipeline.driver.run_end import RunEnd
from engine.pipeline.driver.stillness import Stillness
from engine.pipeline.effects import Effect, EndRun
from engine.pipeline.messages.addresses import environment_address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_driver import (
    AnswersCounted,
    CheckpointReported,
    EvaluationReported,
    EvaluationStarted,
    FaultReported,
    LedgerReported,
    PartEnded,
    PartFinished,
    PartStarted,
    PauseAsked,
    ReplicaObserved,
    ReplicaReady,
    ResizeAsked,
    ResizeReported,
    RunBroken,
    SamplesEnded,
    StepReported,
    TrainerPaused,
    TrainerReady,
    WeightsTaken,
)
from engine.pipeline.messages.to_manager import PartLost, PartReported, PartStarved
from engine.pipeline.plan import Plan
from engine.policy.awake import AwakeTime
from engine.policy.recovery import Patience

# Time for other replicas to take over a leaving replica's trajectories; the rest goes back to data as tokens.
LEAVE_WITHIN_S: Final = 30.0


class DriverBrain:
    def __init__(
        self,
        plan: Plan,
        *,
        now: float,
        num_replicas: int,
        max_replicas: int | None = None,
        leave_within_s: float = LEAVE_WITHIN_S,
        patience: Patience | None = None,
        runtime_left_s: float | None = None,
    ) -> None:
        """`num_replicas`: at the start; `max_replicas`: most that the job may ever have, None: no more.
        `runtime_left_s`: None if another process ends the run."""
        patience = patience or Patience()
        self._readiness = Readiness(plan, num_replicas=num_replicas)
        self._requests = Requests(
            max_replicas=num_replicas if max_replicas is None else max_replicas,
            leave_within_s=leave_within_s,
            only_evaluates=plan.only_evaluates,
        )
        self._environments = [
            EnvironmentWatch(environment_address(worker), now=now, patience=patience)
            for worker in range(plan.num_environments)
        ]
        self._stillness = Stillness(now=now, patience=patience, given_up_within_s=plan.given_up_within_s)
        self._deadline = Deadline(now=now, runtime_left_s=runtime_left_s)
        self._end = RunEnd()
        self._has_ended = False
        self._awake = AwakeTime(now)

    def handle(self, message: Message, now: float) -> list[Effect]:
        if self._has_ended:
            return []
        now = self._awake.at(now)
        self._stillness.receive(message, now)
        self._deadline.receive(message, now)
        effects: list[Effect] = []
        for effect in self._decide(message, now):
            effects.append(effect)
            if isinstance(effect, EndRun):
                self._has_ended = True
                break
        return effects

    @property
    def finished(self) -> list[str]:
        """The parts that have nothing left to do."""
        return self._end.finished

    def _decide(self, message: Message, now: float) -> list[Effect]:
        match message:
            case PauseAsked():
                return self._requests.on_pause_asked(message, now)
            case ResizeAsked():
                return self._requests.on_resize_asked(message, now)
            case TrainerPaused():
                return self._requests.on_paused(message)
            case ResizeReported():
                return [*self._requests.on_resized(message), *self._readiness.on_resized(message.replicas)]
            case PartReported():
                for environment in self._environments:
                    environment.receive(message, now)
                return []
            case PartStarved():
                for environment in self._environments:
                    environment.excuse(message, now)
                return []
            case PartLost():
                return [effect for environment in self._environments for effect in environment.on_lost(message, now)]
            case RunBroken():
                failure_class, cause = message.failure_class, message.cause
                return [EndRun(outcome="failed", failure_class=failure_class, message=message.message, cause=cause)]
            case PartStarted() | PartFinished():
                self._end.on_report(message)
                return [EndRun(outcome="succeeded")] if self._end.is_reached else []
            case TrainerReady():
                self._end.on_report(message)
                return self._readiness.on_report(message)
            case Tick():
                return self._on_tick(now)
            case ReplicaReady() | StepReported() | EvaluationStarted() | EvaluationReported():
                return self._readiness.on_report(message)
            case ReplicaObserved() | AnswersCounted() | CheckpointReported() | WeightsTaken() | PartEnded():
                return []  # only for `stillness`
            case FaultReported() | LedgerReported() | SamplesEnded():
                return []  # only recorded
            case _:
                raise TypeError(f"the driver does not take {type(message).__name__}")

    def _on_tick(self, now: float) -> list[Effect]:
        stalled = self._stillness.on_tick(now, is_ready=self._readiness.is_ready)
        environments = [effect for environment in self._environments for effect in environment.on_tick(now)]
        is_out_of_time = [*self._requests.on_deadline(now)] if self._deadline.is_near(now) else []
        return [*environments, *is_out_of_time, *self._requests.on_tick(now), *stalled]
