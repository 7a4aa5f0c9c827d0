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
from engine.sim.checks import Oracle, demand

# An unreported loss of a replica is detected after some twenty seconds, and its successor takes a few to start. Work
# may take longer, and a successor may start it again.
COMES_TRUE_WITHIN_S: Final = 45.0
PIECES_OF_WORK: Final = 6


@dataclass(slots=True, kw_only=True)
class Asked:
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
        self._said: list[type[Message]] = []
        self._loaded: set[int] = set()
        self._asked: dict[str, Asked] = {}
        self._phase = PHASES.index("loading_weights")
        self._newest_trainer = 0
        self._finished: set[tuple[str, int]] = set()
        self._has_heard_trainer = self._is_ready = False
        self._heard_steps: set[int] = set()
        self.sizes: list[int] = []
        """The announced numbers of replicas."""
        self.disturbed_until = 0.0
        self.end: EndRun | None = None
        self.ended_at = 0.0

    # ── ground truth ──────────────────────────────────────────────────────────────────────────────────────────────

    def on_trainer_ordered(self, epoch: int) -> None:
        self._newest_trainer = epoch

    def on_asked(self, request: PauseAsked | ResizeAsked, now: float) -> None:
        if isinstance(request, ResizeAsked):
            for asked in self._open(ResizeAsked):
                asked.is_overtaken = True
        self._asked.setdefault(request.request_id, Asked(request=request, at=now))

    def on_said(self, message: Message) -> None:
        """Records a part's message to the driver, even if it never arrives."""
        self._said.append(type(message))
        match message:
            case ReplicaReady():
                self._loaded.add(message.replica)
            case PartFinished():
                self._finished.add((message.part, message.epoch))
            case ResizeReported():
                self._num_awaited = min(self._num_awaited, message.replicas)
                for asked in self._open(ResizeAsked):
                    asked.is_reached = asked.is_reached or message.replicas == self._size(asked)

    def _open(self, kind: type[PauseAsked | ResizeAsked]) -> list[Asked]:
        return [
            asked for asked in self._asked.values() if isinstance(asked.request, kind) and not asked.is_acknowledged
        ]

    def _size(self, asked: Asked) -> int | None:
        return min(asked.request.replicas, self._max_replicas) if isinstance(asked.request, ResizeAsked) else None

    # ── the driver's decisions ────────────────────────────────────────────────────────────────────────────────────

    def on_heard(self, message: Message) -> None:
        """Checks a message after the driver has decided on it."""
        if isinstance(message, ResizeAsked) and self.end is None:
            at = self._asked[message.request_id].at
            forgotten = [asked for asked in self._open(ResizeAsked) if asked.at < at]
            demand(not forgotten, f"superseded by {message} and not acknowledged: {forgotten}")
        self._has_heard_trainer |= isinstance(message, TrainerReady)
        if isinstance(message, StepReported):
            self._heard_steps.add(message.step)
        is_result = self._plan.only_evaluates and isinstance(message, EvaluationReported)
        is_work = isinstance(message, StepReported) or (is_result and self._has_heard_trainer)
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
                reached = [asked for asked in self._open(ResizeAsked) if asked.is_reached and not asked.is_overtaken]
                demand([self._size(asked) for asked in reached] == [effect.replicas], f"{effect}, asked {self._asked}")
                self.sizes.append(effect.replicas)
            case Acknowledge():
                self._on_acknowledged(effect)
            case EndRun():
                self._on_end(effect, now)
        self._check_in_time(now)

    def _on_ready(self, effect: AnnounceReady) -> None:
        demand(not self._is_ready, "ready a second time")
        demand(TrainerReady in self._said, "ready before the trainer has loaded")
        works = StepReported in self._said or (self._plan.only_evaluates and EvaluationReported in self._said)
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
            "finalizing": not self._plan.only_evaluates and EvaluationStarted in self._said,
        }
        demand(ground[effect.phase], f"{effect} without a reason")
        self._phase = entered

    def _on_acknowledged(self, effect: Acknowledge) -> None:
        asked = self._asked.get(effect.request_id)
        demand(asked is not None and not asked.is_acknowledged, f"{effect}, asked {self._asked}")
        assert asked is not None
        asked.is_acknowledged = True
        if isinstance(asked.request, ResizeAsked):
            demand(asked.is_reached or asked.is_overtaken, f"{effect}, but the request is not fulfilled")

    def _on_end(self, effect: EndRun, now: float) -> None:
        demand(effect.outcome != "failed", f"the run failed: {effect.message}")
        self.end, self.ended_at = effect, now
        unrecorded = set(range(self._start_step + 1, self._oracle.trained_steps + 1)) - self._heard_steps
        demand(self._plan.only_evaluates or not unrecorded, f"{effect.outcome} without a record of steps {unrecorded}")
        pauses = [asked for asked in self._asked.values() if isinstance(asked.request, PauseAsked)]
        is_paused = effect.outcome == "paused"
        demand(all(asked.is_acknowledged == is_paused for asked in pauses), f"{effect.outcome} with {pauses}")
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
        if EvaluationStarted in self._said:  # the run continues to its end, and a sample may hang twice
            in_time_s += self._plan.given_up_within_s
        for asked in (*self._open(PauseAsked), *self._open(ResizeAsked)):
            waited_s = now - max(asked.at, self.disturbed_until)
            demand(waited_s <= in_time_s, f"{asked.request} is not fulfilled after {waited_s:.0f} s")
