"""The supervisor: polls every actor, and is the body of the driver's and the manager's brains.

    actors ──collect──▶ supervisor ──▶ manager's brain ──▶ end, start a part
                            ├───────▶ driver's brain ───▶ phases, requests, the one end
                            └───────▶ recorder ──▶ sink ──▶ control plane ──▶ requests ──▶ driver's brain

Invariants:
- every wait is bounded: the poll of a dead actor fails at once, and the brains get ticks with the time;
- an unreachable actor is not dead: it is polled again, and the items of a lost answer are sent again. The brains decide
  whether it was silent for too long, and get the time that it had no core;
- a message of one brain to the other, or to itself, is handled after the effects that came with it;
- a round has one time, however long it takes: a part whose answer waits unread was not silent;
- an announcement that the driver's brain makes of a report is recorded before the report.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import ActorUnavailableError, RayError

from engine.live.body.actor import Collected
from engine.live.body.loop import BodyFailed, Brain
from engine.live.body.recording import Recording, plain
from engine.live.facts.from_reports import printable
from engine.live.facts.recorder import Recorder
from engine.live.process.core_waits import ProcessNamed
from engine.live.process.kernel_kills import KernelKills, MemoryReport, describe_kill
from engine.live.process.memory import arithmetic, is_out_of_memory, out_of_memory
from engine.live.run.starved_parts import StarvedParts
from engine.live.run.wiring import Network
from engine.pipeline.driver.brain import DriverBrain
from engine.pipeline.effects import (
    Acknowledge,
    AnnounceReady,
    AnnounceSize,
    Effect,
    EndPart,
    EndRun,
    EnterPhase,
    Send,
    StartPart,
)
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.manager.placing import Placing
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.addresses import DRIVER, MANAGER, Address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_driver import PartEnded, PartStarted, PauseAsked, ResizeAsked, RunBroken
from engine.pipeline.messages.to_manager import HostsObserved, PartLost, PartReported, ReplicaReported
from engine.policy.recovery import Patience
from engine.policy.rooms import HostView
from engine.sinks.lines import TakenLines
from engine.spec.control import ControlRequest
from engine.spec.facts import RunFinished

log = logging.getLogger(__name__)

# One poll waits this long in the actor; cancels and deadlines are noticed within WAKE_S.
POLL_S: Final = 1.0
WAKE_S: Final = 0.2
TICK_S: Final = 1.0

Mail = tuple[Address, Message]
"""A message to one of the two brains here."""


class Supervisor:
    def __init__(
        self,
        *,
        network: Network,
        recorder: Recorder,
        listen: Callable[[], Sequence[ControlRequest]],
        patience: Patience,
        recordings: Path | None = None,
        runtime_left_s: float | None = None,
    ) -> None:
        """`listen` returns new requests; raises if the run must end at once."""
        self._network, self._recorder, self._listen = network, recorder, listen
        self._incarnations = dict.fromkeys(network.addresses, 0)
        self._kills = KernelKills()
        self._starved = StarvedParts(network.actor)
        self._polls: dict[Any, tuple[Address, int]] = {}
        self._out_of_reach: list[tuple[Address, int]] = []
        self._got: dict[Address, int] = {}
        """The number of each actor's last answer."""
        self._ended: RunFinished | None = None
        self._now = now = time.monotonic()
        spec, plan, watched = network.spec, network.plan, dict.fromkeys(network.parts, 0)
        driven: dict[str, Any] = {
            "now": now,
            "num_replicas": network.num_replicas,
            "max_replicas": spec.rollout.replicas,
            "patience": patience,
            "runtime_left_s": runtime_left_s,
        }
        managed: dict[str, Any] = {
            "now": now,
            "incarnations": watched,
            "away": network.away,
            "waiting": network.waiting,
            "patience": patience,
        }
        placed = network.placement
        placing = Placing(placed.needs, placed.places, placed.hosts)
        self._hosts: tuple[HostView, ...] = ()
        self._brains: dict[Address, Brain] = {
            DRIVER: DriverBrain(plan, **driven),
            MANAGER: ManagerBrain(**managed, placing=placing, repacker=Repacker.for_plan(plan)),
        }
        self._recordings: dict[Address, Recording] = {}
        if recordings is not None:
            driven["plan"] = managed["plan"] = plain(plan)
            driven["patience"] = managed["patience"] = plain(patience)
            managed["incarnations"] = {str(part): incarnation for part, incarnation in watched.items()}
            managed |= {"away": list(map(str, network.away)), "waiting": list(map(str, network.waiting))}
            managed |= {"needs": plain(placed.needs), "places": plain(placed.places), "hosts": plain(placed.hosts)}
            for part, built_with in ((DRIVER, driven), (MANAGER, managed)):
                self._recordings[part] = Recording(recordings / f"{part}.jsonl", part=part, built_with=built_with)

    def run(self) -> RunFinished:
        """Runs until the run ends by itself; raises the errors of `listen`, which end it from outside."""
        for address in self._network.addresses:
            self._poll(address)
        tick_at = time.monotonic()
        while self._ended is None:
            self._now = time.monotonic()
            self._collect()
            for request in self._listen():
                self._on_request(request)
            if self._now >= tick_at:
                self._reach_again()
                self._look_at_hosts()
                news: list[Message] = [*self._starved.news(self._now), Tick()]
                for message in news:
                    self._deliver(MANAGER, message)
                    self._deliver(DRIVER, message)
                tick_at = self._now + TICK_S
        return self._ended

    def _look_at_hosts(self) -> None:
        try:
            hosts = self._network.placement.hosts_now()
        except (RayError, ConnectionError) as error:
            log.warning("cannot list the cluster's hosts: %s", error)
            return
        if hosts != self._hosts:
            self._hosts = hosts
            self._deliver(MANAGER, HostsObserved(hosts=hosts))

    def _on_request(self, request: ControlRequest) -> None:
        log.info("request kind=%s id=%s replicas=%s", request.kind, request.id, request.replicas)
        if request.kind == "pause":
            self._deliver(DRIVER, PauseAsked(request_id=request.id))
        elif request.replicas is not None:
            self._deliver(DRIVER, ResizeAsked(request_id=request.id, replicas=request.replicas))

    # ── polls ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _poll(self, address: Address) -> None:
        poll = self._network.actor(address).collect.remote(POLL_S, self._got.get(address, 0))
        self._polls[poll] = (address, self._incarnations[address])

    def _reach_again(self) -> None:
        again, self._out_of_reach = self._out_of_reach, []
        for address, incarnation in again:
            if self._incarnations[address] == incarnation:
                self._poll(address)

    def _collect(self) -> None:
        if not self._polls:
            time.sleep(WAKE_S)
            return
        ready, _ = ray.wait(list(self._polls), num_returns=1, timeout=WAKE_S)
        if ready:  # take all other answers that are ready too
            ready, _ = ray.wait(list(self._polls), num_returns=len(self._polls), timeout=0)
        for poll in ready:
            address, incarnation = self._polls.pop(poll)
            if self._incarnations[address] != incarnation:
                continue
            try:
                self._got[address], collected = ray.get(poll)
                self._starved.note_answer(address, self._now)
            except ActorUnavailableError as error:  # during a reconnect; to Ray's knowledge the actor is alive
                log.warning("unreachable part=%s error=%s", address, _reason(error))
                self._out_of_reach.append((address, incarnation))
                continue
            except RayError as error:
                self._on_died(address, incarnation, error)
                continue
            if address.kind == "environment":  # it has no heartbeat: its answer to a poll shows that it is alive
                self._deliver(DRIVER, PartReported(part=address, incarnation=incarnation))
            for to, message in collected:
                self._on_upward(address, incarnation, to, message)
            if self._incarnations[address] == incarnation:  # a message may have caused its replacement
                self._poll(address)

    def _on_upward(self, address: Address, incarnation: int, to: Address, message: Collected) -> None:
        match message:
            case TakenLines():
                self._recorder.on_lines(message)
            case MemoryReport():
                self._kills.record(str(address), message)
            case ProcessNamed():
                self._starved.introduce(address, incarnation, message)
            case BodyFailed(failure_class="platform"):
                self._on_lost(address, incarnation, message.message, has_failed=True)
            case BodyFailed():
                why, cause = message.failure_class, message.cause
                self._deliver(DRIVER, RunBroken(failure_class=why, message=message.message, cause=cause))
            case _:
                if isinstance(message, ReplicaReported):
                    self._recorder.on_load(message)
                self._deliver(to, message)
                if isinstance(message, PartReported):  # the run's stall limit depends on the parts' work
                    self._deliver(DRIVER, message)

    def _on_died(self, address: Address, incarnation: int, error: RayError) -> None:
        use = self._kills.use_of_host(str(address))
        killer = "Ray" if is_out_of_memory(error) else "the kernel" if self._kills.explain(str(address)) else ""
        reason = describe_kill(killer, use, str(address)) if killer else _reason(error)
        if killer and (use is None or use.explains_a_full_host):
            message = out_of_memory(str(address), reason, arithmetic(self._network.spec, part=address.kind))
            self._deliver(DRIVER, RunBroken(failure_class="memory", message=message))
        else:
            self._on_lost(address, incarnation, reason)

    def _on_lost(self, address: Address, incarnation: int, reason: str, *, has_failed: bool = False) -> None:
        self._forget_load(address)
        self._look_at_hosts()  # its host may be gone too
        watched_by = DRIVER if address.kind == "environment" else MANAGER
        self._deliver(watched_by, PartLost(part=address, incarnation=incarnation, reason=reason, has_failed=has_failed))

    # ── the brains' body ──────────────────────────────────────────────────────────────────────────────────────────

    def _deliver(self, to: Address, message: Message) -> None:
        waiting: deque[Mail] = deque([(to, message)])
        while waiting:
            address, received = waiting.popleft()
            effects = self._brains[address].handle(received, self._now)
            if address in self._recordings:
                self._recordings[address].note(self._now, received, effects)
            for effect in effects:
                waiting.extend(self._perform(effect))
            if address == DRIVER:
                self._recorder.on_report(received)  # type: ignore[arg-type]  # the driver gets reports and ticks only

    def _perform(self, effect: Effect) -> list[Mail]:
        match effect:
            case Send() if effect.to in self._brains:
                return [(effect.to, effect.message)]
            case Send():
                self._network.send(effect.to, effect.message)
            case EndPart():
                self._network.end(effect.part)
                self._starved.forget(effect.part)
                self._forget_load(effect.part)
                return [(DRIVER, PartEnded(part=effect.part, incarnation=effect.incarnation))]
            case StartPart():
                self._start(effect)
                return [(DRIVER, PartStarted(part=effect.part, incarnation=effect.incarnation))]
            case EnterPhase() | AnnounceReady() | AnnounceSize() | Acknowledge():
                self._recorder.announce(effect)
            case EndRun():
                self._ended = self._make_end(effect)
            case _:
                raise TypeError(f"the body of driver and manager does not support {type(effect).__name__}")
        return []

    def _start(self, start: StartPart) -> None:
        self._incarnations[start.part], self._got[start.part] = start.incarnation, 0
        self._network.replace(
            start.part, start.incarnation, hosts=start.hosts, relay=start.relay, checkpoint=self._recorder.checkpoint
        )
        self._poll(start.part)

    def _forget_load(self, part: Address) -> None:
        if part.kind == "rollout":
            self._recorder.forget_load(part.number)

    def _make_end(self, end: EndRun) -> RunFinished:
        return RunFinished(
            outcome=end.outcome,
            failure_class=end.failure_class,
            cause=end.cause,
            message=printable(end.message),
            ledger=self._recorder.ledger,
        )


def _reason(error: RayError) -> str:
    """Ray's first line names the cause; the rest is for Ray's developers."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
