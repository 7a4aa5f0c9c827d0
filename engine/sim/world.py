"""The world: brains, simulated bodies and a network that loses, doubles, delays and reorders.

Invariants:
- every brain is the one that runs live;
- everything random comes from the seed;
- the oracle looks at every effect as it is carried out;
- what survives a process is on the world's disks: data's log, the trainer's checkpoints.
"""

# Over budget: the wiring of every simulated part in one place, as engine/live/wiring.py and supervisor.py are live.

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from engine.pipeline.data import DataBrain
from engine.pipeline.effects import Effect, EndPart, Send, StartPart
from engine.pipeline.manager import ManagerBrain
from engine.pipeline.messages import (
    DATA,
    DRIVER,
    MANAGER,
    TRAINER,
    Address,
    BatchReady,
    LeaveOrdered,
    Message,
    PartLost,
    ReplicaSynced,
    ResizeOrdered,
    Tick,
    TrainerLoaded,
    WorkGranted,
    rollout_address,
)
from engine.pipeline.plan import Plan
from engine.pipeline.relay import RelayBrain
from engine.pipeline.relay_messages import relay_address
from engine.pipeline.repacker import Repacker
from engine.pipeline.reports import (
    EvaluationReported,
    FaultReported,
    LedgerReported,
    PartFinished,
    ResizeReported,
    RunBroken,
)
from engine.pipeline.rollout import RolloutBrain
from engine.pipeline.trainer import TrainerBrain
from engine.policy.recovery import Patience, kind_of
from engine.sim.bodies import CheckpointStore, DataBody, Log, TrainerBody
from engine.sim.chance import Chance
from engine.sim.checks import InvariantBroken, Oracle, demand
from engine.sim.costs import Costs
from engine.sim.faults import Blow, Faults
from engine.sim.kernel import Kernel
from engine.sim.relay_bodies import CarriedChunk, RelayBody
from engine.sim.rollout_body import RolloutBody, Setting

TICK_S: Final = 0.5
START_S: Final = 3.0
NOTICE_S: Final = 0.2
# In proportion to what things cost here.
REPACK_EVERY_S: Final = 0.5
PATIENCE: Final = Patience(silent_s=5.0, trainer_silent_s=8.0, start_s=20.0)
# Far beyond what the slowest seed needs; a run that is not over by then hangs.
DEADLINE_S: Final = 1_000.0


class Brain(Protocol):
    def handle(self, message: Message, now: float) -> list[Effect]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Brains:
    """What is under test; a planted bug is another class."""

    data: type[DataBrain] = DataBrain
    rollout: type[RolloutBrain] = RolloutBrain
    relay: type[RelayBrain] = RelayBrain
    trainer: type[TrainerBrain] = TrainerBrain
    manager: type[ManagerBrain] = ManagerBrain


@dataclass(slots=True, kw_only=True)
class Process:
    """A brain in its body, alive, frozen or dead."""

    incarnation: int
    brain: Brain
    perform: Callable[[Effect], None] = lambda effect: None
    measure: Callable[[], Message] | None = None
    relay_body: RelayBody | None = None
    is_alive: bool = True
    frozen_until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    virtual_s: float
    num_events: int
    oracle: Oracle


@dataclass(slots=True, kw_only=True)
class World:
    seed: int
    plan: Plan
    num_replicas: int
    faults: Faults = field(default_factory=Faults)
    costs: Costs = field(default_factory=Costs)
    brains: Brains = field(default_factory=Brains)
    trace: list[str] | None = None
    start_step: int = 0
    """Of the checkpoint whose weights are evaluated, where the plan trains nothing."""

    kernel: Kernel = field(default_factory=Kernel, init=False)
    oracle: Oracle = field(init=False)
    _network: Chance = field(init=False)
    _setting: Setting = field(init=False)
    _log: Log = field(default_factory=Log, init=False)
    _store: CheckpointStore = field(init=False)
    _start: Mapping[Address, int] = field(init=False)
    _processes: dict[Address, Process] = field(default_factory=dict, init=False)
    _incarnations: dict[Address, int] = field(default_factory=dict, init=False)
    _finished: set[str] = field(default_factory=set, init=False)
    _leaving: set[Address] = field(default_factory=set, init=False)
    resized: list[int] = field(default_factory=list, init=False)
    """The sizes that were reached."""

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.plan, start_step=self.start_step)
        self.faults = replace(self.faults)
        self._network = Chance(self.seed, "network")
        self._setting = Setting(
            seed=self.seed, plan=self.plan, costs=self.costs, faults=self.faults, oracle=self.oracle
        )
        self._store = CheckpointStore(saved={self.start_step: DataBrain(self.plan).progress})
        replicas = [rollout_address(replica) for replica in range(self.num_replicas)]
        relays = [relay_address(host) for host in range(self.plan.num_relays)]
        for part in (DATA, TRAINER, *relays, *replicas):
            self._start_part(part, 0)
        self._start_manager()
        for blow in self.faults.blows:
            self.kernel.after(blow.at, partial(self._strike, blow))
        self.kernel.after(self.faults.quiet_at, self.faults.fall_quiet)

    def run(self) -> Outcome:
        while self._finished != {"trainer", "data"}:
            if not self.kernel.step() or self.kernel.now > DEADLINE_S:
                raise InvariantBroken(f"no end after {self.kernel.now:.0f} s; finished: {sorted(self._finished)}")
        self.oracle.on_end()
        return Outcome(virtual_s=self.kernel.now, num_events=self.kernel.num_events, oracle=self.oracle)

    # ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, address: Address, incarnation: int, brain: Brain) -> Process:
        process = self._processes[address] = Process(incarnation=incarnation, brain=brain)
        self._incarnations[address] = incarnation
        self.kernel.after(self._network.uniform(0, TICK_S), partial(self._tick, process))
        return process

    def _tick(self, process: Process) -> None:
        if not process.is_alive:
            return
        if process.frozen_until > self.kernel.now:
            self.kernel.after(process.frozen_until - self.kernel.now, partial(self._tick, process))
            return
        if process.measure is not None:
            self._handle(process, process.measure())
        self._handle(process, Tick())
        self.kernel.after(TICK_S, partial(self._tick, process))

    def _start_part(self, part: Address, incarnation: int) -> None:
        if self._incarnations.get(part, -1) > incarnation:
            return
        match kind_of(part):
            case "data":
                self._start_data(incarnation)
            case "trainer":
                self._start_trainer(incarnation)
            case "relay":
                self._start_relay(part, incarnation)
            case "rollout":
                self._start_replica(part, incarnation)

    def _start_data(self, incarnation: int) -> None:
        if incarnation == 0:
            brain = self.brains.data(self.plan, start_step=self.start_step)
        else:
            brain = self.brains.data(
                self.plan, start_step=self.start_step, incarnation=incarnation, recovered=self._log.recovered()
            )
            self.oracle.on_recovered(brain.state)
        process = self._add(DATA, incarnation, brain)
        later, after = self._later(process), self._after(process)
        process.perform = DataBody(
            log=self._log, costs=self.costs, oracle=self.oracle, later=later, after=after
        ).perform

    def _start_trainer(self, epoch: int) -> None:
        chance = Chance(self.seed, f"trainer/{epoch}")
        process = self._add(TRAINER, epoch, self.brains.trainer(self.plan, epoch=epoch))
        process.perform = TrainerBody(
            epoch=epoch,
            chance=chance,
            faults=self.faults,
            costs=self.costs,
            store=self._store,
            oracle=self.oracle,
            later=self._later(process),
            after=self._after(process),
            post=self._post,
        ).perform
        step = self._store.newest(is_rotten=epoch > 0 and chance.happens(self.faults.rotten))
        self.oracle.on_trainer(epoch, step)
        progress = self._store.saved[step] if epoch > 0 else None
        self._later(process)(0.5, TrainerLoaded(step=step, num_parameters=1, progress=progress))

    def _start_relay(self, part: Address, incarnation: int) -> None:
        host = int(part.partition("/")[2])
        hosts = tuple(range(self.plan.num_relays))
        process = self._add(part, incarnation, self.brains.relay(host=host, hosts=hosts, incarnation=incarnation))
        process.relay_body = RelayBody(
            chance=Chance(self.seed, f"{part}/{incarnation}"),
            faults=self.faults,
            oracle=self.oracle,
            later=self._later(process),
            post=self._post,
            carry=self._carry,
        )
        process.perform = process.relay_body.perform

    def _start_replica(self, part: Address, incarnation: int) -> None:
        replica = int(part.partition("/")[2])
        brain = self.brains.rollout(self.plan, replica=replica, incarnation=incarnation)
        process = self._add(part, incarnation, brain)
        body = RolloutBody(
            self._setting,
            replica=replica,
            clock=lambda: self.kernel.now,
            later=self._later(process),
            after=self._after(process),
            post=self._post,
        )
        process.perform, process.measure = body.perform, body.measure

    def _start_manager(self) -> None:
        incarnations = {part: number for part, number in self._incarnations.items() if part != MANAGER}
        brain = self.brains.manager(
            now=self.kernel.now,
            incarnations=incarnations,
            repacker=Repacker.for_plan(self.plan, every_s=REPACK_EVERY_S),
            patience=PATIENCE,
        )
        process = self._add(MANAGER, self._incarnations.get(MANAGER, -1) + 1, brain)
        process.perform = self._manage

    def _later(self, process: Process) -> Callable[[float, Message], None]:
        return lambda delay_s, message: self.kernel.after(delay_s, partial(self._handle, process, message))

    def _after(self, process: Process) -> Callable[[float, Callable[[], None]], None]:
        def plan(delay_s: float, deed: Callable[[], None]) -> None:
            self.kernel.after(delay_s, partial(self._do, process, deed))

        return plan

    def _do(self, process: Process, deed: Callable[[], None]) -> None:
        if process.frozen_until > self.kernel.now:
            self.kernel.after(process.frozen_until - self.kernel.now, partial(self._do, process, deed))
        elif process.is_alive:
            deed()

    # ── messages and effects ──────────────────────────────────────────────────────────────────────────────────────

    def _handle(self, process: Process, message: Message) -> None:
        if not process.is_alive:
            return
        now = self.kernel.now
        if process.frozen_until > now:
            self.kernel.after(process.frozen_until - now, partial(self._handle, process, message))
            return
        for effect in process.brain.handle(message, now):
            if self.trace is not None:
                self.trace.append(f"{now:9.3f} {type(process.brain).__name__:14} {effect}")
            if isinstance(effect, Send):
                self._post(effect.to, effect.message)
            else:
                process.perform(effect)

    def _post(self, to: Address, message: Message) -> None:
        if to == DRIVER:  # the driver's channel is a call that is repeated until it comes back
            self._report(message)
            return
        self._observe(message)
        faults = self.faults
        copies = 2 if faults.duplicate and self._network.happens(faults.duplicate) else 1
        for _ in range(copies):
            if not (faults.drop and self._network.happens(faults.drop)):
                delay_s = self._network.uniform(0, faults.delay_s)
                self.kernel.after(delay_s, partial(self._deliver, to, message))

    def _observe(self, message: Message) -> None:
        match message:
            case WorkGranted():
                self.oracle.on_granted(message)
            case ReplicaSynced():
                self.oracle.on_delivered(message.finished)
            case BatchReady():
                self.oracle.on_batch(message)

    def _deliver(self, to: Address, message: Message) -> None:
        process = self._processes.get(to)
        if process is not None:
            self._handle(process, message)

    def _carry(self, host: int, chunk: CarriedChunk) -> None:
        if not self._network.happens(self.faults.drop):
            delay_s = self._network.uniform(0, self.faults.delay_s)
            self.kernel.after(delay_s, partial(self._arrive, relay_address(host), chunk))

    def _arrive(self, to: Address, chunk: CarriedChunk) -> None:
        process = self._processes.get(to)
        if process is not None and process.relay_body is not None:
            self._do(process, partial(process.relay_body.on_carried, chunk))

    def _report(self, message: Message) -> None:
        match message:
            case PartFinished():
                self._finished.add(message.part)
            case RunBroken():
                raise InvariantBroken(f"the run was broken off: {message.message}")
            case EvaluationReported():
                self.oracle.evaluated.append(message)
            case FaultReported():
                self.oracle.faults.append(message)
            case ResizeReported():
                self.resized.append(message.replicas)
            case LedgerReported():
                self.oracle.ledger = message.counts

    def _manage(self, effect: Effect) -> None:
        match effect:
            case EndPart():
                process = self._processes.get(effect.part)
                if process is not None and process.incarnation == effect.incarnation:
                    self._kill(effect.part, process)
            case StartPart():
                demand(effect.incarnation > self._incarnations[effect.part], f"{effect} a second time")
                self._incarnations[effect.part] = effect.incarnation
                self.kernel.after(START_S, partial(self._start_part, effect.part, effect.incarnation))
            case _:
                raise TypeError(f"the manager's body does not do {type(effect).__name__}")

    # ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _strike(self, blow: Blow) -> None:
        if blow.kind == "resize":
            self._deliver(MANAGER, ResizeOrdered(replicas=blow.which, within_s=blow.lasts_s))
            return
        parts = sorted(part for part in self._processes if part.partition("/")[0] == blow.part)
        part = parts[blow.which % len(parts)]
        process = self._processes[part]
        if not process.is_alive:
            return
        if blow.kind == "leave":
            self._leaving.add(part)
            if not self._leaving.issuperset(parts):  # one replica stays
                order = LeaveOrdered(replica=int(part.partition("/")[2]), within_s=blow.lasts_s)
                self._deliver(MANAGER, order)
            return
        if blow.kind == "freeze":
            process.frozen_until = max(process.frozen_until, self.kernel.now + blow.lasts_s)
            return
        self._kill(part, process)
        if part == MANAGER:
            self.kernel.after(START_S, self._start_manager)
        elif not blow.is_silent:
            lost = PartLost(part=part, incarnation=process.incarnation, reason="killed")
            self.kernel.after(NOTICE_S, partial(self._deliver, MANAGER, lost))

    def _kill(self, part: Address, process: Process) -> None:
        process.is_alive = False
        if part.startswith("rollout/"):
            self.oracle.on_death(int(part.partition("/")[2]))
