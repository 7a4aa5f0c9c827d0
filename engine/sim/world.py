"""The world: a cluster, the faults injected into it, and the driver that it reports to.

Invariants:
- everything random comes from the seed;
- the oracle checks every effect when it is carried out;
- the run ends exactly once, when the driver's brain decides it; a run that does not end, or fails, is broken.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from engine.pipeline.driver.brain import DriverBrain
from engine.pipeline.effects import Effect
from engine.pipeline.messages.addresses import (
    DATA,
    DRIVER,
    MANAGER,
    TRAINER,
    Address,
    environment_address,
    relay_address,
    rollout_address,
)
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import (
    AnswersCounted,
    EvaluationReported,
    FaultReported,
    LedgerReported,
    PauseAsked,
    ResizeAsked,
)
from engine.pipeline.messages.to_manager import LeaveOrdered, PartLost
from engine.pipeline.plan import Plan
from engine.sim.chance import Chance
from engine.sim.cluster import PATIENCE, START_S, Brains, Cluster
from engine.sim.fault_costs import Costs
from engine.sim.faults import Blow, Faults
from engine.sim.hosts import Hosts
from engine.sim.kernel import Kernel
from engine.sim.oracle.driver import DriverOracle
from engine.sim.oracle.pipeline import InvariantBroken, Oracle
from engine.sim.processes.process import Brain
from engine.sim.setting import Setting

NOTICE_S: Final = 0.2
# Far beyond what the slowest seed needs; a run that lasts longer hangs.
DEADLINE_S: Final = 3_000.0
# Messages in flight at the end have arrived by then.
AFTERWARDS_S: Final = 1.0
# Longer than a healthy run generates nothing: losses that are noticed late, and starts.
STILL_S: Final = 60.0
LONGEST_LEAVE_S: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    end: Literal["succeeded", "paused"]
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
    no_progress_s: float = STILL_S
    """The driver fails a run without open samples and without work after this time."""
    start_step: int = 0
    """The step of the checkpoint that the run begins with."""
    base_is_due: bool = False
    """No attempt before this one has evaluated version 0."""
    deadline_s: float = DEADLINE_S
    hosts: Hosts | None = None
    """The hosts that hold all processes; None: placement is not simulated."""

    kernel: Kernel = field(default_factory=Kernel, init=False)
    oracle: Oracle = field(init=False)
    driven: DriverOracle = field(init=False)
    _cluster: Cluster = field(init=False)
    _leaving: set[Address] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.plan, start_step=self.start_step, base_is_due=self.base_is_due)
        self.driven = DriverOracle(
            self.plan,
            oracle=self.oracle,
            num_replicas=self.num_replicas,
            start_step=self.start_step,
            longest_s=self.costs.longest_s,
        )
        self.faults = replace(self.faults)
        setting = Setting(
            seed=self.seed,
            plan=self.plan,
            costs=self.costs,
            faults=self.faults,
            oracle=self.oracle,
            start_step=self.start_step,
            base_is_due=self.base_is_due,
            hosts=self.hosts,
        )
        self._cluster = Cluster(
            setting,
            kernel=self.kernel,
            brains=self.brains,
            driven=self.driven,
            report=self._report,
            note=self._note,
        )
        self._cluster.start_driver(self._driver())
        waiting = [] if self.hosts is None else self.hosts.waiting
        replicas = [rollout_address(replica) for replica in range(self.num_replicas - len(waiting))]
        relays = [relay_address(host) for host in range(self.plan.num_relays)]
        environments = map(environment_address, range(self.plan.num_environments))
        for part in (DATA, TRAINER, *relays, *replicas, *environments):
            self._cluster.start(part, 0)
        self._cluster.start_manager()
        for blow in self.faults.blows:
            self.kernel.after(blow.at, partial(self._strike, blow))
        if self.faults.is_rough:
            self.driven.disturbed_until = self.faults.quiet_at
        self.kernel.after(self.faults.quiet_at, self.faults.fall_quiet)

    def _driver(self) -> DriverBrain:
        return self.brains.driver(
            self.plan,
            now=self.kernel.now,
            num_replicas=self.num_replicas,
            leave_within_s=Chance(self.seed, "leave").uniform(0.0, LONGEST_LEAVE_S),
            patience=replace(PATIENCE, nothing_moves_s=self.no_progress_s),
        )

    def run(self) -> Outcome:
        while self.driven.end is None:
            if not self.kernel.step() or self.kernel.now > self.deadline_s:
                raise InvariantBroken(f"no end after {self.kernel.now:.0f} s")
        virtual_s, num_events = self.kernel.now, self.kernel.num_events
        while self.kernel.now < virtual_s + AFTERWARDS_S and self.kernel.step():
            pass  # the oracle objects to any further decision
        end = self.driven.end.outcome
        assert end != "failed", "the oracle should have objected"
        return Outcome(end=end, virtual_s=virtual_s, num_events=num_events, oracle=self.oracle)

    def _note(self, brain: Brain, effect: Effect) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.kernel.now:9.3f} {type(brain).__name__:14} {effect}")
        if isinstance(brain, DriverBrain):
            self.driven.on_decided(effect, self.kernel.now)

    def _report(self, message: Message) -> None:
        self.driven.on_sent(message)
        match message:
            case AnswersCounted():
                self.oracle.on_counted(message)
            case EvaluationReported():
                self.oracle.evaluated.append(message)
            case FaultReported():
                self.oracle.faults.append(message)
            case LedgerReported():
                self.oracle.ledger = message.counts

    def _strike(self, blow: Blow) -> None:
        number = f"{blow.kind} {self.kernel.now}"
        match blow.kind:
            case "resize":
                self._send_request(ResizeAsked(request_id=number, replicas=blow.which))
                return
            case "pause":
                self._send_request(PauseAsked(request_id=number))
                return
            case "host goes" | "host comes":
                self._cluster.change_hosts(blow)
                return
        parts = self._cluster.parts_of(blow.part)
        part = parts[blow.which % len(parts)]
        process = self._cluster.process(part)
        if not process.is_alive:
            return
        self.driven.disturbed_until = max(self.driven.disturbed_until, self.kernel.now + blow.lasts_s)
        match blow.kind:
            case "leave":
                self._leaving.add(part)
                if not self._leaving.issuperset(parts):  # one replica stays
                    self._deliver(MANAGER, LeaveOrdered(replica=part.number, within_s=blow.lasts_s))
            case "freeze":
                for frozen in (part, MANAGER) if part == DRIVER else (part,):
                    self._cluster.process(frozen).freeze(blow.lasts_s)
            case "starve":
                self._cluster.starve(part, blow.lasts_s)
            case "hang":
                self._cluster.hang(part)
            case "crash":
                self._cluster.kill(part)
                if part == MANAGER:
                    self.kernel.after(START_S, self._cluster.start_manager)
                elif not blow.is_silent:
                    lost = PartLost(part=part, incarnation=process.incarnation, reason="killed")
                    watched_by = DRIVER if part.kind == "environment" else MANAGER
                    self.kernel.after(NOTICE_S, partial(self._deliver, watched_by, lost))

    def _send_request(self, request: PauseAsked | ResizeAsked) -> None:
        """Delivers the request twice, as an unacknowledged request comes with every heartbeat."""
        self.driven.on_request(request, self.kernel.now)
        for _ in range(2):
            self._deliver(DRIVER, request)

    def _deliver(self, to: Address, message: Message) -> None:
        self._cluster.network.deliver(to, message)
