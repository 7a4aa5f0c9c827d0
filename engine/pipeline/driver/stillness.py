"""Stillness: a run in which nothing has moved for too long is broken, whatever the reason.

Invariants:
- what moves is work: tokens, weights, steps, evaluations, and signs of life inside a piece of work, of a loop or of a
  thread beside it (a checkpoint is written, weights are hashed). A heartbeat alone does not;
- a part that is replaced again and again keeps no run alive: only so many replacements begin the count of seconds
  again, and beyond them the signs of what was replaced count only once something moved;
- generated tokens count, so the limit bounds one piece of a step or of a load, not one long answer;
- samples that all wait for a tool, a grader or nothing at all have their own deadline: while any is open, the limit is
  longer than it takes data to have them begun elsewhere and to give them up;
- while a host keeps a part from running, nothing can be expected to move;
- the limit grows with what the parts are at, those that are there: no constant bounds work that grows with the job.
"""

from engine.pipeline.effects import Effect, EndRun
from engine.pipeline.messages.addresses import Address, rollout_address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import (
    AnswersCounted,
    CheckpointReported,
    EvaluationReported,
    EvaluationStarted,
    PartEnded,
    PartFinished,
    PartStarted,
    ReplicaObserved,
    ReplicaReady,
    ResizeReported,
    StepReported,
    TrainerPaused,
    TrainerReady,
    WeightsTaken,
)
from engine.pipeline.messages.to_manager import PartReported, PartStarved
from engine.policy.progress import LOOP, Piece
from engine.policy.recovery import MAX_LOSSES, Patience


class Stillness:
    def __init__(self, *, now: float, patience: Patience, given_up_within_s: float) -> None:
        """`given_up_within_s`: a group that hangs, wherever it is begun."""
        self._patience, self._given_up_within_s = patience, given_up_within_s
        self._moved_at = now
        self._observed: dict[int, ReplicaObserved] = {}
        """By replica."""
        self._at: dict[Address, PartReported] = {}
        """What each part said last that it is at."""
        self._ended: dict[Address, int] = {}
        """By part, the newest incarnation that is no more."""
        self._unproven: set[Address] = set()
        """Parts that were replaced since something came of the work."""
        self._num_replaced = 0
        """Since then."""

    def hear(self, message: Message, now: float) -> None:
        match message:
            case PartReported() if message.incarnation <= self._ended.get(message.part, -1):
                pass  # it was on its way
            case PartReported():
                if self._is_sign_of_life(message):
                    self._moved_at = now
                self._at[message.part] = message
            case PartStarved():
                self._moved_at = min(now, self._moved_at + message.waited_s)
            case ReplicaObserved() if message.incarnation <= self._ended.get(rollout_address(message.replica), -1):
                pass
            case PartEnded():
                self._ended[message.part] = message.incarnation
                self._at.pop(message.part, None)
                if message.part.kind == "rollout":
                    self._observed.pop(message.part.number, None)
            case PartStarted():
                self._at.pop(message.part, None)
                self._unproven.add(message.part)
                self._num_replaced += 1
                if self._num_replaced <= MAX_LOSSES:
                    self._moved_at = now
            case _ if self._is_movement(message):
                self._moved_at, self._num_replaced = now, 0
                self._unproven.clear()

    def on_tick(self, now: float, *, is_ready: bool) -> list[Effect]:
        limit_s = self._patience.of_the_run_s(piece for report in self._at.values() for piece in _pieces(report))
        if not is_ready:  # parts that only start say nothing yet
            limit_s = max(limit_s, self._patience.start_s)
        if self._samples_are_open:
            limit_s += self._given_up_within_s
        if now - self._moved_at <= limit_s:
            return []
        message = f"nothing moved for {limit_s:.0f} s: no token, no step, no evaluation"
        return [EndRun(outcome="failed", failure_class="infrastructure", message=message)]

    @property
    def _samples_are_open(self) -> bool:
        return any(
            observed.num_running or observed.num_waiting or observed.num_with_environment
            for observed in self._observed.values()
        )

    def _is_sign_of_life(self, report: PartReported) -> bool:
        if self._is_doubted(report.part):
            return False
        before = self._at.get(report.part)
        if before is None or before.incarnation != report.incarnation:
            return any(piece.what != LOOP for piece in _pieces(report))
        return report.beside != before.beside or (report.piece != before.piece and report.piece.what != LOOP)

    def _is_doubted(self, part: Address) -> bool:
        return part in self._unproven and self._num_replaced > MAX_LOSSES

    def _is_movement(self, message: Message) -> bool:
        match message:
            case ReplicaObserved():
                before = self._observed.get(message.replica)
                self._observed[message.replica] = message
                return before is None or _generated(before) != _generated(message)
            case TrainerReady() | ReplicaReady() | StepReported() | WeightsTaken() | CheckpointReported():
                return True
            case EvaluationStarted() | EvaluationReported() | AnswersCounted() | PartFinished():
                return True
            case TrainerPaused() | ResizeReported():
                return True
            case _:
                return False


def _generated(observed: ReplicaObserved) -> tuple[int, int, int]:
    """By whom, on which weights, and how much."""
    return observed.incarnation, observed.version, observed.num_decoded


def _pieces(report: PartReported) -> tuple[Piece, ...]:
    return (report.piece, *report.beside)
