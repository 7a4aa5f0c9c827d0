"""The world: a cluster, the blows that it takes, and the driver that it reports to.

Invariants:
- everything random comes from the seed;
- the oracle looks at every effect as it is carried out;
- the run ends when trainer and data both say so; one that does not is broken.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from engine.pipeline.driver.run_end import RunEnd
from engine.pipeline.effects import Effect
from engine.pipeline.messages.addresses import DATA, MANAGER, TRAINER, Address, relay_address, rollout_address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import (
    AnswersCounted,
    EvaluationReported,
    FaultReported,
    LedgerReported,
    PartFinished,
    ResizeReported,
    RunBroken,
    TrainerReady,
)
from engine.pipeline.messages.to_manager import LeaveOrdered, PartLost, ResizeOrdered
from engine.pipeline.plan import Plan
from engine.sim.checks import InvariantBroken, Oracle
from engine.sim.cluster import START_S, Brains, Cluster
from engine.sim.costs import Costs
from engine.sim.faults import Blow, Faults
from engine.sim.kernel import Kernel
from engine.sim.process import Brain
from engine.sim.setting import Setting

NOTICE_S: Final = 0.2
# Far beyond what the slowest seed needs; a run that is not over by then hangs.
DEADLINE_S: Final = 1_000.0


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
    resized: list[int] = field(default_factory=list, init=False)
    """The sizes that were reached."""
    _cluster: Cluster = field(init=False)
    _end: RunEnd = field(default_factory=RunEnd, init=False)
    _leaving: set[Address] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.plan, start_step=self.start_step)
        self.faults = replace(self.faults)
        setting = Setting(
            seed=self.seed,
            plan=self.plan,
            costs=self.costs,
            faults=self.faults,
            oracle=self.oracle,
            start_step=self.start_step,
        )
        self._cluster = Cluster(setting, kernel=self.kernel, brains=self.brains, report=self._report, note=self._note)
        replicas = [rollout_address(replica) for replica in range(self.num_replicas)]
        relays = [relay_address(host) for host in range(self.plan.num_relays)]
        for part in (DATA, TRAINER, *relays, *replicas):
            self._cluster.start(part, 0)
        self._cluster.start_manager()
        for blow in self.faults.blows:
            self.kernel.after(blow.at, partial(self._strike, blow))
        self.kernel.after(self.faults.quiet_at, self.faults.fall_quiet)

    def run(self) -> Outcome:
        while not self._end.has_come:
            if not self.kernel.step() or self.kernel.now > DEADLINE_S:
                raise InvariantBroken(f"no end after {self.kernel.now:.0f} s; finished: {self._end.finished}")
        self.oracle.on_end()
        return Outcome(virtual_s=self.kernel.now, num_events=self.kernel.num_events, oracle=self.oracle)

    def _note(self, brain: Brain, effect: Effect) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.kernel.now:9.3f} {type(brain).__name__:14} {effect}")

    def _report(self, message: Message) -> None:
        match message:
            case TrainerReady() | PartFinished():
                self._end.on_report(message)
            case RunBroken():
                raise InvariantBroken(f"the run was broken off: {message.message}")
            case AnswersCounted():
                self.oracle.on_counted(message)
            case EvaluationReported():
                self.oracle.evaluated.append(message)
            case FaultReported():
                self.oracle.faults.append(message)
            case ResizeReported():
                self.resized.append(message.replicas)
            case LedgerReported():
                self.oracle.ledger = message.counts

    def _strike(self, blow: Blow) -> None:
        if blow.kind == "resize":
            self._tell_manager(ResizeOrdered(replicas=blow.which, within_s=blow.lasts_s))
            return
        parts = self._cluster.parts_of(blow.part)
        part = parts[blow.which % len(parts)]
        process = self._cluster.process(part)
        if not process.is_alive:
            return
        match blow.kind:
            case "leave":
                self._leaving.add(part)
                if not self._leaving.issuperset(parts):  # one replica stays
                    self._tell_manager(LeaveOrdered(replica=part.number, within_s=blow.lasts_s))
            case "freeze":
                process.frozen_until = max(process.frozen_until, self.kernel.now + blow.lasts_s)
            case "crash":
                self._cluster.kill(part)
                if part == MANAGER:
                    self.kernel.after(START_S, self._cluster.start_manager)
                elif not blow.is_silent:
                    lost = PartLost(part=part, incarnation=process.incarnation, reason="killed")
                    self.kernel.after(NOTICE_S, partial(self._tell_manager, lost))

    def _tell_manager(self, message: Message) -> None:
        self._cluster.network.deliver(MANAGER, message)
