"""Watch over an environment's worker, which has no brain and no state that replicas cannot request again.

Invariants:
- a worker that is gone, or silent for too long although it had a core, is ended and replaced, with a growing back-off
  when it keeps dying;
- a worker that dies too often fails the run: the fault is in the code that it runs.
"""

from engine.pipeline.effects import Effect, EndPart, EndRun, Send, StartPart
from engine.pipeline.messages.addresses import DRIVER, Address
from engine.pipeline.messages.to_driver import FaultReported
from engine.pipeline.messages.to_manager import PartLost, PartReported, PartStarved
from engine.policy.recovery import GiveUp, Patience, after_loss
from engine.policy.silence import Silence


class EnvironmentWatch:
    def __init__(self, part: Address, *, now: float, patience: Patience) -> None:
        self._part, self._patience = part, patience
        self._incarnation = 0
        self._silence, self._has_spoken = Silence(now), False
        self._lost_at: list[float] = []
        self._start_due_at: float | None = None
        """Start of the successor, if the worker is gone."""

    def receive(self, report: PartReported, now: float) -> None:
        if report.part == self._part and report.incarnation == self._incarnation:
            self._silence.end(now)
            self._has_spoken = True

    def excuse(self, starved: PartStarved, now: float) -> None:
        if starved.part == self._part and starved.incarnation == self._incarnation:
            self._silence.excuse(starved.waited_s, now)

    def on_lost(self, lost: PartLost, now: float) -> list[Effect]:
        is_of_another = lost.part != self._part or lost.incarnation != self._incarnation
        if is_of_another or self._start_due_at is not None:
            return []
        return self._replace(lost.reason, now)

    def on_tick(self, now: float) -> list[Effect]:
        if self._start_due_at is not None:
            return self._start_due(now)
        silent_s = self._silence.lasts_s(now)
        if silent_s <= self._patience.silence_s(has_spoken=self._has_spoken):
            return []
        return self._replace(f"no answer for {silent_s:.0f} s", now)

    def _replace(self, reason: str, now: float) -> list[Effect]:
        self._lost_at.append(now)
        ended = EndPart(part=self._part, incarnation=self._incarnation)  # it may be frozen, not dead
        decision = after_loss(self._lost_at, now)
        if isinstance(decision, GiveUp):
            message = f"the {self._part} keeps crashing: {reason}"
            return [ended, EndRun(outcome="failed", failure_class="user_code", message=message)]
        self._start_due_at = now + decision.after_s
        action = f"open calls are repeated; a replacement starts in {decision.after_s:.0f} s"
        fault = FaultReported(component=str(self._part), message=reason, action=action)
        return [ended, Send(to=DRIVER, message=fault), *self._start_due(now)]

    def _start_due(self, now: float) -> list[Effect]:
        if self._start_due_at is None or now < self._start_due_at:
            return []
        self._incarnation += 1
        self._has_spoken, self._start_due_at = False, None
        self._silence.end(now)
        return [StartPart(part=self._part, incarnation=self._incarnation)]
