"""The driver's oracle: keeps its own record of requests, reports and announcements, and raises on a violation.

Invariants checked after every effect of the driver:
- the pipeline is ready at most once, not before it can be, and before any step is recorded (in a run that only
  evaluates: before any result, unless that trainer died before its first message);
- phases only go forward, and each has a reason;
- every request is acknowledged at most once, and not before it is fulfilled or superseded; a request is fulfilled soon
  after the last fault;
- a run that succeeds or pauses has recorded every step trained since it began;
- the run ends exactly once: as succeeded when trainer and data of the newest trainer have finished, as paused when a
  pause was requested and no trained step is lost. Any other end is a bug of the brains.
"""

from dataclasses import dataclass
from typing import Final

from engine.pipeline.driver.readiness import PHASES
from engine.pipeline.effects import Acknowledge, AnnounceReady, AnnounceSize, Effect, EndRun, EnterPhase
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import (
    EvaluationReported,
    EvaluationStarted,
    PartFinished,
    PauseAsked,
    ReplicaReady,
    ResizeAsked,
    ResizeReported,
    StepReported,
    TrainerReady,
)
from engine.pipeline.plan import Plan
from engine.sim.oracle.pipeline import Oracle, demand

# An unreported loss of a replica is detected after some twenty seconds, and its successor takes a few to start. Work
# may take longer, and a successor may start it again.
COMES_TRUE_WITHIN_S: Final = 45.0
PIECES_OF_WORK: Final = 6


@dataclass(slots=True, kw_only=True)
class TrackedRequest:
    request: PauseAsked | ResizeAsked
    at: float
    is_reached: bool = False
    is_overtaken: bool = False
    is_acknowledged: bool = False


class DriverOracle:
    def __init__(self, plan: Plan, *, oracle: Oracle, num_replicas: int, start_step: int, longest_s: float) -> None:
        """`longest_s`: the longest time of a piece of work."""
        self._in_time_s = COMES_TRUE_WITHIN_S + PIECES_OF_WORK * longest_s
        self._plan, self._oracle, self._start_step = plan, oracle, start_step
        self._max_replicas = self._num_awaited = num_replicas
        self._sent: list[type[Message]] = []
        self._loaded: set[int] = set()
        self._requests: dict[str, TrackedRequest] = {}
        self._phase = PHASES.index("loading_weights")
        self._newest_trainer = 0
        self._finished: set[tuple[str, int]] = set()
        self._has_trainer = self._is_ready = self._is_closing = False
        self._received_steps: set[int] = set()
        self.sizes: list[int] = []
        """The announced numbers of replicas."""
        self.disturbed_until = 0.0
        self.end: EndRun | None = None
        self.ended_at = 0.0

    # ── ground truth ──────────────────────────────────────────────────────────────────────────────────────────────

    def on_trainer_ordered(self, epoch: int) -> None:
        self._newest_trainer = epoch

    def on_request(self, request: PauseAsked | ResizeAsked, now: float) -> None:
        if isinstance(request, ResizeAsked):
            for entry in self._open(ResizeAsked):
                entry.is_overtaken = True
        self._requests.setdefault(request.request_id, TrackedRequest(request=request, at=now))

    def on_sent(self, message: Message) -> None:
        """Records a part's message to the driver, even if it never arrives."""
        self._sent.append(type(message))
        match message:
            case ReplicaReady():
                self._loaded.add(message.replica)
            case PartFinished():
                self._finished.add((message.part, message.epoch))
            case ResizeReported():
                self._num_awaited = min(self._num_awaited, message.replicas)
                for entry in self._open(ResizeAsked):
                    entry.is_reached = entry.is_reached or message.replicas == self._size(entry)

    def _open(self, kind: type[PauseAsked | ResizeAsked]) -> list[TrackedRequest]:
        return [
            entry for entry in self._requests.values() if isinstance(entry.request, kind) and not entry.is_acknowledged
        ]

    def _size(self, entry: TrackedRequest) -> int | None:
        return min(entry.request.replicas, self._max_replicas) if isinstance(entry.request, ResizeAsked) else None

    # ── the driver's decisions ────────────────────────────────────────────────────────────────────────────────────

    def on_received(self, message: Message) -> None:
        """Checks a message after the driver has decided on it."""
        if isinstance(message, ResizeAsked) and self.end is None:
            at = self._requests[message.request_id].at
            forgotten = [entry for entry in self._open(ResizeAsked) if entry.at < at]
            demand(not forgotten, f"superseded by {message} and not acknowledged: {forgotten}")
        self._has_trainer |= isinstance(message, TrainerReady)
        if isinstance(message, StepReported):
            self._received_steps.add(message.step)
        self._is_closing |= isinstance(message, EvaluationStarted)
        is_result = isinstance(message, EvaluationReported) and (self._plan.only_evaluates or self._is_closing)
        is_work = isinstance(message, StepReported) or (is_result and self._has_trainer)
        if self.end is None:
            demand(self._is_ready or not is_work, f"{type(message).__name__} is recorded before the pipeline is ready")

    def on_decided(self, effect: Effect, now: float) -> None:
        demand(self.end is None, f"{effect} after the end")
        match effect:
            case AnnounceReady():
                self._on_ready(effect)
            case EnterPhase():
                self._on_phase(effect)
            case AnnounceSize():
                reached = [entry for entry in self._open(ResizeAsked) if entry.is_reached and not entry.is_overtaken]
                demand([self._size(entry) for entry in reached] == [effect.replicas], f"{effect}, of {self._requests}")
                self.sizes.append(effect.replicas)
            case Acknowledge():
                self._on_acknowledged(effect)
            case EndRun():
                self._on_end(effect, now)
        self._check_in_time(now)

    def _on_ready(self, effect: AnnounceReady) -> None:
        demand(not self._is_ready, "ready a second time")
        demand(TrainerReady in self._sent, "ready before the trainer has loaded")
        is_answered = EvaluationReported in self._sent and (self._plan.only_evaluates or self._is_closing)
        works = StepReported in self._sent or is_answered
        missing = set(range(self._num_awaited)) - self._loaded
        demand(works or not missing, f"ready, but the replicas {missing} hold no weights")
        demand(1 <= effect.num_replicas <= self._max_replicas, f"{effect} of {self._max_replicas}")
        self._is_ready = True

    def _on_phase(self, effect: EnterPhase) -> None:
        entered = PHASES.index(effect.phase)
        demand(entered > self._phase, f"{effect} after {PHASES[self._phase]}")
        demand(self._is_ready, f"{effect} before the pipeline is ready")
        ground = {
            "evaluating": self._plan.only_evaluates,
            "training": not self._plan.only_evaluates,
            "finalizing": not self._plan.only_evaluates and EvaluationStarted in self._sent,
        }
        demand(ground[effect.phase], f"{effect} without a reason")
        self._phase = entered

    def _on_acknowledged(self, effect: Acknowledge) -> None:
        entry = self._requests.get(effect.request_id)
        demand(entry is not None and not entry.is_acknowledged, f"{effect}, requests {self._requests}")
        assert entry is not None
        entry.is_acknowledged = True
        if isinstance(entry.request, ResizeAsked):
            demand(entry.is_reached or entry.is_overtaken, f"{effect}, but the request is not fulfilled")

    def _on_end(self, effect: EndRun, now: float) -> None:
        demand(effect.outcome != "failed", f"the run failed: {effect.message}")
        self.end, self.ended_at = effect, now
        unrecorded = set(range(self._start_step + 1, self._oracle.trained_steps + 1)) - self._received_steps
        demand(self._plan.only_evaluates or not unrecorded, f"{effect.outcome} without a record of steps {unrecorded}")
        pauses = [entry for entry in self._requests.values() if isinstance(entry.request, PauseAsked)]
        is_paused = effect.outcome == "paused"
        demand(all(entry.is_acknowledged == is_paused for entry in pauses), f"{effect.outcome} with {pauses}")
        if is_paused:
            demand(bool(pauses), "paused without a request")
            self._oracle.on_paused()
            return
        demand(self._is_ready, "succeeded, but was never ready")
        due = {(part, self._newest_trainer) for part in ("trainer", "data")}
        demand(due <= self._finished, f"succeeded with trainer {self._newest_trainer}; finished: {self._finished}")
        self._oracle.on_end()

    def _check_in_time(self, now: float) -> None:
        in_time_s = self._in_time_s
        if EvaluationStarted in self._sent:  # the run continues to its end, and a sample may hang twice
            in_time_s += self._plan.given_up_within_s
        for entry in (*self._open(PauseAsked), *self._open(ResizeAsked)):
            waited_s = now - max(entry.at, self.disturbed_until)
            demand(waited_s <= in_time_s, f"{entry.request} is not fulfilled after {waited_s:.0f} s")
