"""The supervisor: polls every actor, lends the manager's brain a body, and decides how the run ends.

    actors ──collect──▶ supervisor ──▶ manager's brain ──▶ end, start a replica
                            └──▶ recorder ──▶ sink ──▶ control plane ──▶ requests ──▶ supervisor

Invariants:
- every wait has an end: a dead actor fails the poll on it at once, a hung one is replaced once it has been
  silent for long, and a run in which nothing moves for NO_PROGRESS_S is broken, whatever the reason;
- exactly one end is decided on;
- a request from outside (pause, resize) is said again until it has come true, and acknowledged then.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError

from engine.live.body.loop import BodyFailed, Upward
from engine.live.body.recording import Recording
from engine.live.facts.from_reports import printable
from engine.live.facts.recorder import Recorder
from engine.live.run.wiring import Network
from engine.pipeline.effects import Effect, EndPart, Send, StartPart
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.addresses import DATA, DRIVER, ENVIRONMENT, MANAGER, TRAINER, Address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import PauseRequested
from engine.pipeline.messages.to_driver import FaultReported, ResizeReported, RunBroken
from engine.pipeline.messages.to_manager import PartLost, ReplicaReported, ResizeOrdered
from engine.pipeline.plan import Plan
from engine.policy.recovery import GiveUp, Patience, after_loss
from engine.spec.control import ControlRequest
from engine.spec.facts import FailureClass, RunFinished

log = logging.getLogger(__name__)

# One poll waits this long in the actor; a cancel or a deadline is noticed within WAKE_S.
POLL_S: Final = 1.0
WAKE_S: Final = 0.2
MANAGER_TICK_S: Final = 1.0
# Generated tokens count as progress, so this bounds one trainer step or one load of weights, not one long answer.
NO_PROGRESS_S: Final = 600.0
PAUSE_AGAIN_S: Final = 2.0
# Time for a replica that leaves to have its trajectories taken over; what is left by then goes back as tokens.
LEAVE_WITHIN_S: Final = 30.0


class Supervisor:
    def __init__(
        self,
        *,
        plan: Plan,
        network: Network,
        recorder: Recorder,
        heed: Callable[[], Sequence[ControlRequest]],
        no_progress_s: float,
        recordings: Path | None = None,
    ) -> None:
        """`heed` raises if the run shall end, and gives the requests that came."""
        self._network, self._recorder = network, recorder
        self._heed = heed
        self._no_progress_s = no_progress_s
        now = time.monotonic()
        self._incarnations = dict.fromkeys(network.addresses, 0)
        incarnations = dict.fromkeys(network.parts, 0)
        self._manager = ManagerBrain(
            now=now, incarnations=incarnations, away=network.away, repacker=Repacker.for_plan(plan)
        )
        self._recording: Recording | None = None
        if recordings is not None:
            built_with = {
                "spec": network.spec.model_dump(mode="json"),
                "now": now,
                "incarnations": {str(part): incarnation for part, incarnation in incarnations.items()},
                "away": list(map(str, network.away)),
            }
            self._recording = Recording(recordings / "manager.jsonl", part=MANAGER, built_with=built_with)
        self._polls: dict[Any, tuple[Address, int]] = {}
        self._environment_lost_at: list[float] = []
        self._environment_heard_at, self._environment_has_spoken = now, False
        self._pause: ControlRequest | None = None
        self._pause_said_at = float("-inf")
        self._resizes: dict[int, list[str]] = {}
        """Requests that wait for a number of replicas."""
        self._progress_seen = -1
        self._progress_at = now

    def run(self) -> RunFinished:
        """Until the run ends by itself; raises what `heed` raises when it is ended from outside."""
        for address in self._network.addresses:
            self._poll(address)
        tick_at = time.monotonic()
        while True:
            self._collect()
            now = time.monotonic()
            if now >= tick_at:
                self._manage(Tick(), now)
                self._watch_environment(now)
                tick_at = now + MANAGER_TICK_S
            for request in self._heed():
                self._on_request(request, now)
            self._say_pause(now)
            ended = self._end(now)
            if ended is not None:
                return ended

    # ── polls ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _poll(self, address: Address) -> None:
        poll = self._network.actor(address).collect.remote(POLL_S)
        self._polls[poll] = (address, self._incarnations[address])

    def _collect(self) -> None:
        ready, _ = ray.wait(list(self._polls), num_returns=1, timeout=WAKE_S)
        if ready:  # whatever else has come by now is taken along
            ready, _ = ray.wait(list(self._polls), num_returns=len(self._polls), timeout=0)
        for poll in ready:
            address, incarnation = self._polls.pop(poll)
            if self._incarnations[address] != incarnation:
                continue
            try:
                collected: list[tuple[Address, Upward]] = ray.get(poll)
            except RayError as error:
                self._on_dead(address, incarnation, _reason(error))
                continue
            if address == ENVIRONMENT:
                self._environment_heard_at, self._environment_has_spoken = time.monotonic(), True
            for to, message in collected:
                self._on_upward(address, incarnation, to, message)
            if self._incarnations[address] == incarnation:  # one of the messages may have had it replaced
                self._poll(address)

    def _on_upward(self, address: Address, incarnation: int, to: Address, message: Upward) -> None:
        if isinstance(message, BodyFailed):
            if message.failure_class == "config":
                self._break(RunBroken(failure_class="config", message=message.message))
            else:
                self._on_dead(address, incarnation, message.message)
        elif to == DRIVER:
            self._recorder.on_report(message)  # type: ignore[arg-type]  # brains send the driver reports only
        else:
            if isinstance(message, ReplicaReported):
                self._recorder.on_load(message)
            self._manage(message, time.monotonic())

    def _on_dead(self, address: Address, incarnation: int, reason: str) -> None:
        if address == ENVIRONMENT:
            self._replace_environment(reason)
            return
        if address.kind == "rollout":
            self._recorder.forget_load(address.number)
        self._manage(PartLost(part=address, incarnation=incarnation, reason=reason), time.monotonic())

    def _watch_environment(self, now: float) -> None:
        """It has no brain that would beat: its answer to a poll says that it lives."""
        silent_s = now - self._environment_heard_at
        if silent_s > POLL_S + Patience().allows("environment", has_spoken=self._environment_has_spoken):
            self._replace_environment(f"no answer for {silent_s:.0f} s")

    def _replace_environment(self, reason: str) -> None:
        """It holds nothing that replicas cannot ask for again."""
        now = time.monotonic()
        self._network.end(ENVIRONMENT)  # it may only be frozen
        self._environment_heard_at, self._environment_has_spoken = now, False
        self._environment_lost_at.append(now)
        if isinstance(after_loss(self._environment_lost_at, now), GiveUp):
            self._break(RunBroken(failure_class="user_code", message=f"the environment keeps dying: {reason}"))
            return
        action = "replaced; what was asked is asked again"
        fault = FaultReported(component="environment", message=reason, action=action)
        self._recorder.on_report(fault)
        self._start(ENVIRONMENT, self._incarnations[ENVIRONMENT] + 1)

    # ── the manager's body ────────────────────────────────────────────────────────────────────────────────────────

    def _manage(self, message: Message, now: float) -> None:
        effects = self._manager.handle(message, now)
        if self._recording is not None:
            self._recording.note(now, message, effects)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(to=to, message=message) if to == DRIVER:
                self._recorder.on_report(message)  # type: ignore[arg-type]  # as above
                if isinstance(message, ResizeReported):
                    for request_id in self._resizes.pop(message.replicas, []):
                        self._recorder.acknowledge(request_id)
            case Send():
                self._network.send(effect.to, effect.message)
            case EndPart():
                self._network.end(effect.part)
                if effect.part.kind == "rollout":
                    self._recorder.forget_load(effect.part.number)
            case StartPart():
                self._start(effect.part, effect.incarnation)
            case _:
                raise TypeError(f"the manager's body does not do {type(effect).__name__}")

    def _start(self, part: Address, incarnation: int) -> None:
        self._incarnations[part] = incarnation
        self._network.replace(part, incarnation)
        self._poll(part)

    # ── requests from outside ─────────────────────────────────────────────────────────────────────────────────────

    def _on_request(self, request: ControlRequest, now: float) -> None:
        log.info("request kind=%s id=%s replicas=%s", request.kind, request.id, request.replicas)
        if request.kind == "pause":
            self._pause = request
        elif request.replicas is not None:
            replicas = min(request.replicas, self._network.spec.rollout.replicas)
            for request_id in [each for waiting in self._resizes.values() for each in waiting]:
                self._recorder.acknowledge(request_id)  # overtaken by this one
            self._resizes = {replicas: [request.id]}
            self._manage(ResizeOrdered(replicas=replicas, within_s=LEAVE_WITHIN_S), now)

    def _say_pause(self, now: float) -> None:
        if self._pause is None or now - self._pause_said_at < PAUSE_AGAIN_S:
            return
        self._pause_said_at = now
        for part in (TRAINER, DATA):
            self._network.send(part, PauseRequested())

    # ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _break(self, broken: RunBroken) -> None:
        self._recorder.on_report(broken)

    def _end(self, now: float) -> RunFinished | None:
        recorder = self._recorder
        if recorder.broken is not None:
            return self._failed(recorder.broken.failure_class, recorder.broken.message)
        if recorder.is_finished:
            return RunFinished(outcome="succeeded", ledger=recorder.ledger)
        if self._pause is not None and recorder.paused is not None:
            recorder.acknowledge(self._pause.id)
            message = "Paused."
            if not self._network.spec.only_evaluates:
                message = f"Paused after step {recorder.paused.step}."
            return RunFinished(outcome="paused", message=message, ledger=recorder.ledger)
        if recorder.num_progress != self._progress_seen:
            self._progress_seen, self._progress_at = recorder.num_progress, now
        elif now - self._progress_at > self._patience_s:
            message = f"nothing moved for {self._patience_s:.0f} s: no token, no step, no evaluation"
            return self._failed("infrastructure", message)
        return None

    @property
    def _patience_s(self) -> float:
        """Loading says nothing while it lasts."""
        return self._no_progress_s if self._recorder.is_ready else max(self._no_progress_s, Patience().start_s)

    def _failed(self, failure_class: FailureClass, message: str) -> RunFinished:
        return RunFinished(
            outcome="failed",
            failure_class=failure_class,
            message=printable(message),
            ledger=self._recorder.ledger,
        )


def _reason(error: RayError) -> str:
    """Ray's first line says what happened; the rest is for Ray's developers."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
