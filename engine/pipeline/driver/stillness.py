"""How long nothing has moved: a run that stands still for too long is broken, whatever the reason.

Invariants:
- what moves is work: tokens, weights, steps, evaluations. A heartbeat does not, nor does a part that is replaced: one
  that is replaced for ever must not keep a run alive;
- generated tokens count, so the limit bounds one step or one load of weights, not one long answer.
"""

from engine.pipeline.effects import Effect, EndRun
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import (
    AnswersCounted,
    CheckpointReported,
    EvaluationReported,
    EvaluationStarted,
    PartFinished,
    ReplicaObserved,
    ReplicaReady,
    ResizeReported,
    StepReported,
    TrainerPaused,
    TrainerReady,
    WeightsTaken,
)


class Stillness:
    def __init__(self, *, now: float, limit_s: float, loading_s: float) -> None:
        """`loading_s`: the limit while parts load, which say nothing meanwhile."""
        self._moved_at = now
        self._limit_s, self._loading_s = limit_s, max(limit_s, loading_s)
        self._generated: dict[int, tuple[int, int, int]] = {}
        """By replica: who says it, on which weights, and how much was generated."""

    def hear(self, message: Message, now: float) -> None:
        if self._is_movement(message):
            self._moved_at = now

    def on_tick(self, now: float, *, is_ready: bool) -> list[Effect]:
        limit_s = self._limit_s if is_ready else self._loading_s
        if now - self._moved_at <= limit_s:
            return []
        message = f"nothing moved for {limit_s:.0f} s: no token, no step, no evaluation"
        return [EndRun(outcome="failed", failure_class="infrastructure", message=message)]

    def _is_movement(self, message: Message) -> bool:
        match message:
            case ReplicaObserved():
                generated = (message.incarnation, message.version, message.num_decoded)
                before = self._generated.get(message.replica)
                self._generated[message.replica] = generated
                return generated != before
            case TrainerReady() | ReplicaReady() | StepReported() | WeightsTaken() | CheckpointReported():
                return True
            case EvaluationStarted() | EvaluationReported() | AnswersCounted() | PartFinished():
                return True
            case TrainerPaused() | ResizeReported():
                return True
            case _:
                return False
