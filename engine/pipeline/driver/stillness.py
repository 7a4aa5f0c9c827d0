"""Stillness: a run without progress for too long fails, whatever the reason.

Invariants:
- progress is work: tokens, weights, steps, evaluations, and signs of life inside a piece of work, of a loop or of
  another thread (a checkpoint is written, weights are hashed). A heartbeat alone is no progress;
- a part that is replaced repeatedly does not keep a run alive: only so many replacements reset the timer, and beyond
  them signs of life of replaced parts count only after other progress;
- generated tokens count, so the limit bounds one piece of a step or of a load, not a long answer;
- samples that hang, or wait for a tool or a grader, have their own deadline: while any is open, the limit exceeds the
  time in which data restarts them elsewhere and gives them up;
- time in which a host keeps a part from running does not count;
- the limit depends on the current work of live parts: no constant bounds work that grows with the job.
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
        """`given_up_within_s`: time until data gives up a group that hangs on every replica."""
        self._patience, self._given_up_within_s = patience, given_up_within_s
        self._moved_at = now
        self._observed: dict[int, ReplicaObserved] = {}
        """By replica."""
        self._at: dict[Address, PartReported] = {}
        """The last heartbeat of each part."""
        self._ended: dict[Address, int] = {}
        """By part, the newest incarnation that has ended."""
        self._unproven: set[Address] = set()
        """Parts replaced since the last progress."""
        self._num_replaced = 0
        """Replacements since then."""

    def receive(self, message: Message, now: float) -> None:
        match message:
            case PartReported() if message.incarnation <= self._ended.get(message.part, -1):
                pass  # late: the incarnation has ended
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
        limit_s = self._patience.stall_limit_s(piece for report in self._at.values() for piece in _pieces(report))
        if not is_ready:  # starting parts send no heartbeat yet
            limit_s = max(limit_s, self._patience.start_s)
        if self._samples_are_open:
            limit_s += self._given_up_within_s
        if now - self._moved_at <= limit_s:
            return []
        message = f"no progress for {limit_s:.0f} s: no token, no step, no evaluation"
        return [EndRun(outcome="failed", failure_class="platform", message=message)]

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
        return report.worker_pieces != before.worker_pieces or (
            report.piece != before.piece and report.piece.what != LOOP
        )

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
    """Incarnation, version and number of tokens."""
    return observed.incarnation, observed.version, observed.num_decoded


def _pieces(report: PartReported) -> tuple[Piece, ...]:
    return (report.piece, *report.worker_pieces)
