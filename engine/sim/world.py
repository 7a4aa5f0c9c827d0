"""The world: brains, simulated bodies and a network that loses, doubles, delays and reorders.

Invariants: every brain is the one that runs live; everything random comes from the seed; the oracle looks at every
effect as it is carried out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from engine.pipeline.data import DataBrain
from engine.pipeline.effects import Effect, EndReplica, Send, StartReplica
from engine.pipeline.manager import ManagerBrain
from engine.pipeline.messages import (
    DATA,
    DRIVER,
    MANAGER,
    RELAY,
    TRAINER,
    Address,
    LoadMeasured,
    Message,
    ReplicaLost,
    Tick,
    TrainerLoaded,
    TrajectoriesEnded,
    WeightsInstalled,
    rollout_address,
)
from engine.pipeline.plan import Plan
from engine.pipeline.relay import RelayBrain
from engine.pipeline.reports import EvaluationReported, FaultReported, LedgerReported, PartFinished, RunBroken
from engine.pipeline.rollout import RolloutBrain
from engine.pipeline.trainer import TrainerBrain
from engine.sim.bodies import RelayBody, RolloutBody, TrainerBody
from engine.sim.chance import Chance
from engine.sim.checks import InvariantBroken, Oracle
from engine.sim.faults import Faults
from engine.sim.kernel import Kernel

TICK_S: Final = 0.5
START_S: Final = 3.0
NOTICE_S: Final = 0.2
# Far beyond what the slowest seed needs; a run that is not over by then hangs.
DEADLINE_S: Final = 2_000.0


class Brain(Protocol):
    def handle(self, message: Message, now: float) -> list[Effect]: ...


@dataclass(slots=True, kw_only=True)
class Process:
    """A brain in its body, alive or dead."""

    brain: Brain
    perform: Callable[[Effect], None]
    is_alive: bool = True
    on_delivered: Callable[[Message], None] = lambda message: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    virtual_s: float
    num_events: int
    oracle: Oracle
    broken: RunBroken | None


class World:
    def __init__(self, *, seed: int, plan: Plan, num_replicas: int, faults: Faults) -> None:
        self._seed, self._plan, self._faults = seed, plan, faults
        self._kernel = Kernel()
        self._oracle = Oracle(plan)
        self._network = Chance(seed, "network")
        self._finished: set[str] = set()
        self._broken: RunBroken | None = None
        self._processes: dict[Address, Process] = {}
        self._incarnations: dict[int, int] = {}
        self._add(DATA, DataBrain(plan), self._unexpected)
        self._add(RELAY, RelayBrain(), self._relay_body().perform)
        self._add(TRAINER, TrainerBrain(plan), self._trainer_body().perform)
        self._add(MANAGER, ManagerBrain(num_replicas=num_replicas, now=0.0), self._manage)
        for replica in range(num_replicas):
            self._start_replica(replica, 0)
        self._later(TRAINER, self._processes[TRAINER])(0.5, TrainerLoaded(step=0, num_parameters=1))
        for at in faults.crashes:
            self._kernel.after(at, self._crash_one)

    def run(self) -> Outcome:
        while self._broken is None and self._finished != {"trainer", "data"}:
            if not self._kernel.step() or self._kernel.now > DEADLINE_S:
                raise InvariantBroken(f"no end after {self._kernel.now:.0f} s; finished: {sorted(self._finished)}")
        if self._broken is None:
            self._oracle.on_end()
        return Outcome(
            virtual_s=self._kernel.now,
            num_events=self._kernel.num_events,
            oracle=self._oracle,
            broken=self._broken,
        )

    # ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, address: Address, brain: Brain, perform: Callable[[Effect], None]) -> Process:
        process = self._processes[address] = Process(brain=brain, perform=perform)
        self._kernel.after(self._network.uniform(0, TICK_S), partial(self._tick, address, process))
        return process

    def _tick(self, address: Address, process: Process) -> None:
        if process.is_alive:
            if isinstance(process.brain, RolloutBrain):
                self._handle(process, LoadMeasured(kv_used=0.0, num_tokens=0))
            self._handle(process, Tick())
            self._kernel.after(TICK_S, partial(self._tick, address, process))

    def _start_replica(self, replica: int, incarnation: int) -> None:
        self._incarnations[replica] = incarnation
        address = rollout_address(replica)
        brain = RolloutBrain(self._plan, replica=replica, incarnation=incarnation)
        process = self._add(address, brain, self._unexpected)
        body = RolloutBody(
            chance=Chance(self._seed, f"{address}/{incarnation}"),
            faults=self._faults,
            oracle=self._oracle,
            later=self._later(address, process),
        )
        process.perform, process.on_delivered = body.perform, body.on_delivered

    def _relay_body(self) -> RelayBody:
        chance = Chance(self._seed, "relay")
        later = self._later(RELAY, None)
        return RelayBody(chance=chance, faults=self._faults, oracle=self._oracle, later=later, post=self._post)

    def _trainer_body(self) -> TrainerBody:
        chance = Chance(self._seed, "trainer")
        later = self._later(TRAINER, None)
        return TrainerBody(chance=chance, faults=self._faults, oracle=self._oracle, later=later, post=self._post)

    def _later(self, address: Address, process: Process | None) -> Callable[[float, Message], None]:
        def plan(delay_s: float, message: Message) -> None:
            receiver = process or self._processes[address]
            self._kernel.after(delay_s, lambda: self._handle(receiver, message))

        return plan

    # ── messages and effects ──────────────────────────────────────────────────────────────────────────────────────

    def _handle(self, process: Process, message: Message) -> None:
        if not process.is_alive:
            return
        if isinstance(message, WeightsInstalled | TrajectoriesEnded):
            process.on_delivered(message)
        for effect in process.brain.handle(message, self._kernel.now):
            if isinstance(effect, Send):
                self._post(effect.to, effect.message)
            else:
                process.perform(effect)

    def _post(self, to: Address, message: Message) -> None:
        if to == DRIVER:  # the driver's channel is a call that is repeated until it comes back
            self._report(message)
            return
        copies = 2 if self._network.happens(self._faults.duplicate) else 1
        for _ in range(copies):
            if not self._network.happens(self._faults.drop):
                delay_s = self._network.uniform(0, self._faults.delay_s)
                self._kernel.after(delay_s, lambda: self._handle(self._processes[to], message))

    def _report(self, message: Message) -> None:
        match message:
            case PartFinished():
                self._finished.add(message.part)
            case RunBroken():
                self._broken = message
            case EvaluationReported():
                self._oracle.evaluated.append(message)
            case FaultReported():
                self._oracle.faults.append(message)
            case LedgerReported():
                self._oracle.ledger = message.counts

    def _manage(self, effect: Effect) -> None:
        match effect:
            case EndReplica():
                if self._incarnations[effect.replica] == effect.incarnation:
                    self._processes[rollout_address(effect.replica)].is_alive = False
            case StartReplica():
                self._kernel.after(START_S, partial(self._start_replica, effect.replica, effect.incarnation))
            case _:
                self._unexpected(effect)

    def _unexpected(self, effect: Effect) -> None:
        raise TypeError(f"no body here does {type(effect).__name__}")

    # ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _crash_one(self) -> None:
        replica = self._network.whole(0, len(self._incarnations) - 1)
        process = self._processes[rollout_address(replica)]
        if not process.is_alive:
            return
        process.is_alive = False
        if not self._network.happens(self._faults.silent_deaths):
            lost = ReplicaLost(replica=replica, incarnation=self._incarnations[replica], reason="killed")
            self._later(MANAGER, None)(NOTICE_S, lost)
