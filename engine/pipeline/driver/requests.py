"""External requests to a run: a pause, another number of replicas.

Invariants:
- a request is repeated to the parts that carry it out until it is complete: they may die and forget it;
- a request is acknowledged once, when it is complete or a later one has replaced it; a request still open at the end of
  the run is not acknowledged.
"""

from typing import Final

from engine.pipeline.effects import Acknowledge, AnnounceSize, Effect, EndRun, Send
from engine.pipeline.messages.addresses import DATA, MANAGER, TRAINER
from engine.pipeline.messages.to_data import PauseRequested
from engine.pipeline.messages.to_driver import PauseAsked, ResizeAsked, ResizeReported, TrainerPaused
from engine.pipeline.messages.to_manager import ResizeOrdered

SAY_AGAIN_S: Final = 2.0


class Requests:
    def __init__(self, *, max_replicas: int, leave_within_s: float, only_evaluates: bool) -> None:
        """`leave_within_s`: time for other replicas to take over a leaving replica's trajectories."""
        self._max_replicas, self._leave_within_s = max_replicas, leave_within_s
        self._only_evaluates = only_evaluates
        self._known: set[str] = set()
        self._pauses: list[str] = []
        self._pause_announced_at = 0.0
        self._is_out_of_time = False
        """The run pauses by itself, which counts as a failure."""
        self._resize: ResizeAsked | None = None
        self._order = 0
        """The number of the latest resize request."""
        self._resize_said_at = 0.0

    def on_pause_asked(self, asked: PauseAsked, now: float) -> list[Effect]:
        if not self._is_new(asked.request_id):
            return []
        self._pauses.append(asked.request_id)
        return self._announce_pause(now)

    def on_deadline(self, now: float) -> list[Effect]:
        if self._is_out_of_time:
            return []
        self._is_out_of_time = True
        return [] if self._pauses else self._announce_pause(now)

    def on_resize_asked(self, asked: ResizeAsked, now: float) -> list[Effect]:
        if not self._is_new(asked.request_id):
            return []
        overtaken = [] if self._resize is None else [Acknowledge(request_id=self._resize.request_id)]
        self._resize, self._order = asked, self._order + 1
        return [*overtaken, *self._announce_resize(now)]

    def on_paused(self, report: TrainerPaused) -> list[Effect]:
        if not self._pauses:
            return [_end_out_of_time(report)] if self._is_out_of_time else []
        message = "Paused." if self._only_evaluates else f"Paused after step {report.step}."
        acknowledged = [Acknowledge(request_id=request_id) for request_id in self._pauses]
        return [*acknowledged, EndRun(outcome="paused", message=message)]

    def on_resized(self, report: ResizeReported) -> list[Effect]:
        """Ignores reports on overtaken orders."""
        if self._resize is None or report.order != self._order:
            return []
        acknowledged = Acknowledge(request_id=self._resize.request_id)
        self._resize = None
        return [AnnounceSize(replicas=report.replicas), acknowledged]

    def on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if (self._pauses or self._is_out_of_time) and now - self._pause_announced_at >= SAY_AGAIN_S:
            effects += self._announce_pause(now)
        if self._resize is not None and now - self._resize_said_at >= SAY_AGAIN_S:
            effects += self._announce_resize(now)
        return effects

    def _is_new(self, request_id: str) -> bool:
        is_new = request_id not in self._known
        self._known.add(request_id)
        return is_new

    def _announce_pause(self, now: float) -> list[Effect]:
        self._pause_announced_at = now
        return [Send(to=part, message=PauseRequested()) for part in (TRAINER, DATA)]

    def _announce_resize(self, now: float) -> list[Effect]:
        assert self._resize is not None
        self._resize_said_at = now
        replicas = min(self._resize.replicas, self._max_replicas)
        order = ResizeOrdered(replicas=replicas, within_s=self._leave_within_s, order=self._order)
        return [Send(to=MANAGER, message=order)]


def _end_out_of_time(report: TrainerPaused) -> EndRun:
    saved = f"A checkpoint of step {report.checkpointed} is saved" if report.checkpointed else "No checkpoint was saved"
    message = f"max_runtime_s leaves no time for another step: the run ended after step {report.step}. {saved}."
    return EndRun(outcome="failed", failure_class="timeout", message=message)
