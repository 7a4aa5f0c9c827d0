"""The processes of a run: live brains in simulated bodies. The bodies of manager and driver start and kill processes.

Invariants:
- every brain is the one that runs live;
- a message to a part reaches its newest process; each has a higher incarnation than the one before;
- the driver is one process for the whole run: its end would end the attempt. Its messages to the manager always
  arrive, since live they share a process;
- only the cluster's disks survive a process: data's log, the trainer's checkpoints.
"""

# Over budget: every kind of process is wired here to its body, once.

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from engine.pipeline.data.brain import DataBrain
from engine.pipeline.driver.brain import DriverBrain
from engine.pipeline.effects import (
    Acknowledge,
    AnnounceReady,
    AnnounceSize,
    Effect,
    EndPart,
    EndRun,
    EnterPhase,
    StartPart,
)
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.addresses import DATA, DRIVER, MANAGER, TRAINER, Address, environment_of, relay_address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import CheckpointReported, PartEnded, PartStarted
from engine.pipeline.messages.to_manager import PartReported, PartStarved
from engine.pipeline.messages.to_relay import CoreAwaited
from engine.pipeline.messages.to_trainer import TrainerLoaded
from engine.pipeline.records import SampleKey
from engine.pipeline.relay.brain import RelayBrain
from engine.pipeline.rollout.brain import RolloutBrain
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.recovery import Patience
from engine.sim.bodies.data_and_trainer import CheckpointStore, DataBody, Done, Log, TrainerBody, Work, WorkAside
from engine.sim.bodies.environment import EnvironmentWorker
from engine.sim.bodies.relay import RelayBody
from engine.sim.bodies.rollout import RolloutBody
from engine.sim.chance import Chance
from engine.sim.faults import Blow
from engine.sim.hosts import LOOK_EVERY_S
from engine.sim.kernel import Event, Kernel
from engine.sim.oracle.driver import DriverOracle
from engine.sim.oracle.pipeline import demand
from engine.sim.processes.network import Network
from engine.sim.processes.outbox import Outbox
from engine.sim.processes.process import TICK_S, Brain, Process
from engine.sim.setting import Setting

START_S: Final = 3.0
RESTED_S: Final = 2.0
"""After a freeze: queued messages have been handled by then."""
# Scaled to the virtual costs here.
REPACK_EVERY_S: Final = 0.5
PATIENCE: Final = Patience(silent_s=5.0, start_s=20.0)
ASKED_EVERY_S: Final = 1.0
# Time for the first heartbeat of a thawed or new process to arrive; some are lost on the way.
NEWS_S: Final = 4.0
# The manager may be dead or frozen itself, and a new one waits for heartbeats for a while.
NOTICED_LATE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Brains:
    """The brains under test; a planted bug is another class."""

    data: type[DataBrain] = DataBrain
    rollout: type[RolloutBrain] = RolloutBrain
    relay: type[RelayBrain] = RelayBrain
    trainer: type[TrainerBrain] = TrainerBrain
    manager: type[ManagerBrain] = ManagerBrain
    driver: type[DriverBrain] = DriverBrain


class Cluster:
    def __init__(
        self,
        setting: Setting,
        *,
        kernel: Kernel,
        brains: Brains,
        driven: DriverOracle,
        report: Callable[[Message], None],
        note: Callable[[Brain, Effect], None],
    ) -> None:
        """`report` is called with every message to the driver, `note` with every effect before it is carried out."""
        self._setting, self._kernel, self._brains, self._note = setting, kernel, brains, note
        self._driven, self._report = driven, report
        self._processes: dict[Address, Process] = {}
        self._incarnations: dict[Address, int] = {}
        """The highest incarnation of each part that was started or ordered."""
        self._chance = Chance(setting.seed, "network")
        self.network = Network(setting, kernel=kernel, chance=self._chance, processes=self._processes)
        setting.environment_answers = self._environment_answers
        self._log = Log()
        self._progress = replace(DataBrain(setting.plan).progress, base_is_due=setting.base_is_due)
        """Data's progress in the checkpoint that the run begins with."""
        self._store = CheckpointStore(saved={setting.start_step: self._progress}, reported_step=setting.start_step)

    def _environment_answers(self, key: SampleKey) -> bool:
        return self._processes[environment_of(key.group.ordinal, self._setting.plan.num_environments)].is_working

    def parts_of(self, kind: str) -> list[Address]:
        parts = (part for part in self._processes if part.kind == kind)
        return sorted(parts, key=lambda part: part.number)

    def process(self, part: Address) -> Process:
        return self._processes[part]

    def start(self, part: Address, incarnation: int) -> None:
        if self._incarnations.get(part, -1) > incarnation or self._is_homeless(part):
            return
        match part.kind:
            case "data":
                self._start_data(incarnation)
            case "trainer":
                self._start_trainer(incarnation)
            case "relay":
                self._start_relay(part, incarnation)
            case "rollout":
                self._start_replica(part, incarnation)
            case "environment":
                self._add(part, incarnation, EnvironmentWorker(part, incarnation=incarnation), tick_after_s=TICK_S)
            case "manager" | "driver":
                raise ValueError(f"{part} is never started by an order")

    def start_driver(self, brain: DriverBrain) -> None:
        """Starts the driver, before all other processes: they report to it."""
        process = self._process(DRIVER, 0, brain)
        process.post, process.perform, process.on_received = (
            self._post_of_driver,
            self._drive,
            self._on_received_by_driver,
        )
        self._admit(DRIVER, process)
        process.after(TICK_S, process.tick)

    def _on_received_by_driver(self, message: Message) -> None:
        self._driven.on_received(message)
        if isinstance(message, CheckpointReported):
            self._store.reported_step = message.step

    def start_manager(self) -> None:
        unwatched = ("manager", "driver", "environment")
        incarnations = {part: number for part, number in self._incarnations.items() if part.kind not in unwatched}
        hosts = self._setting.hosts
        assert hosts is None or MANAGER not in self._incarnations, "live, its restart would end the run"
        brain = self._brains.manager(
            now=self._kernel.now,
            incarnations=incarnations,
            waiting=[] if hosts is None else hosts.waiting,
            placing=None if hosts is None else hosts.placing(),
            repacker=Repacker.for_plan(self._setting.plan, every_s=REPACK_EVERY_S),
            patience=PATIENCE,
        )
        process = self._add(MANAGER, self._incarnations.get(MANAGER, -1) + 1, brain)
        process.perform = self._manage
        if hosts is not None:
            process.after(0.0, self._look_at_hosts)

    def kill(self, part: Address) -> None:
        self._processes[part].is_alive = False
        if part.kind == "rollout":
            self._setting.oracle.on_death(part.number)

    def _add(self, part: Address, incarnation: int, brain: Brain, *, tick_after_s: float | None = None) -> Process:
        """`tick_after_s`: the time of the first tick; None: random."""
        process = self._process(part, incarnation, brain)
        outbox = Outbox(
            self._setting.faults,
            chance=Chance(self._setting.seed, f"outbox/{part}/{incarnation}"),
            kernel=self._kernel,
            sender=process,
            driver=self._processes[DRIVER],
        )
        process.post = partial(self._post, outbox)
        self._admit(part, process)
        process.start(tick_in_s=self._chance.uniform(0, TICK_S) if tick_after_s is None else tick_after_s)
        return process

    def _process(self, part: Address, incarnation: int, brain: Brain) -> Process:
        return Process(
            part=part,
            incarnation=incarnation,
            brain=brain,
            kernel=self._kernel,
            post=self.network.post,
            note=self._note,
        )

    def _admit(self, part: Address, process: Process) -> None:
        self._processes[part], self._incarnations[part] = process, process.incarnation

    def _post(self, outbox: Outbox, to: Address, message: Message) -> None:
        if to == DRIVER:
            self._report(message)
            outbox.put(message)
            return
        if isinstance(message, PartReported):  # it also reaches the manager through the driver's process
            outbox.put(message)
        self.network.post(to, message)

    def _post_of_driver(self, to: Address, message: Message) -> None:
        if to == MANAGER:
            self.network.deliver(to, message)
        elif to == DRIVER:
            self._report(message)
            self._processes[DRIVER].later(0.0, message)
        else:
            self.network.post(to, message)

    def _work_of(self, process: Process) -> Work:
        chance = Chance(self._setting.seed, f"work/{process.part}/{process.incarnation}")

        def work(what: str, usual_s: float, then: Done) -> float:
            stretches = self._setting.costs.stretches(chance, usual_s)
            process.work(what, stretches, then)
            return sum(stretches)

        return work

    def _aside_of(self, process: Process) -> WorkAside:
        chance = Chance(self._setting.seed, f"beside/{process.part}/{process.incarnation}")

        def work(what: str, usual_s: float, then: Event) -> None:
            process.workers.do(what, self._setting.costs.stretches(chance, usual_s), partial(process.do, then))

        return work

    def _start_data(self, incarnation: int) -> None:
        setting = self._setting
        if incarnation == 0:
            brain = self._brains.data(setting.plan, start_step=setting.start_step, progress=self._progress)
        else:
            brain = self._brains.data(
                setting.plan,
                start_step=setting.start_step,
                progress=self._progress,
                incarnation=incarnation,
                recovered=self._log.recovered(),
            )
            setting.oracle.on_recovered(brain.state)
        process = self._add(DATA, incarnation, brain)
        process.perform = DataBody(
            log=self._log,
            costs=setting.costs,
            oracle=setting.oracle,
            later=process.later,
            after=process.after,
            work=self._work_of(process),
        ).perform

    def _start_trainer(self, epoch: int) -> None:
        setting = self._setting
        chance = Chance(setting.seed, f"trainer/{epoch}")
        process = self._add(TRAINER, epoch, self._brains.trainer(setting.plan, epoch=epoch))
        work = self._work_of(process)
        body = TrainerBody(
            epoch=epoch,
            chance=chance,
            faults=setting.faults,
            costs=setting.costs,
            store=self._store,
            oracle=setting.oracle,
            later=process.later,
            work=work,
            aside=self._aside_of(process),
            post=self.network.post,
        )
        process.perform = body.perform
        step = self._store.go_back(is_rotten=epoch > 0 and chance.happens(setting.faults.rotten))
        setting.oracle.on_trainer(epoch, step)
        progress = self._store.saved[step]
        if progress.base_is_due:
            body.copy_base()
        loaded = TrainerLoaded(
            step=step,
            num_parameters=1,
            progress=progress if epoch > 0 else None,
            holds_base=progress.base_is_due,
        )
        process.do(partial(work, "load", setting.costs.load_s, lambda: loaded))

    def _start_relay(self, part: Address, incarnation: int) -> None:
        setting = self._setting
        others = {each.number for each in self._processes if each.kind == "relay"}
        hosts = tuple(sorted(others.union(range(setting.plan.num_relays))))
        brain = self._brains.relay(host=part.number, hosts=hosts, incarnation=incarnation, cut=lambda *size: 1)
        process = self._add(part, incarnation, brain)
        body = RelayBody(
            chance=Chance(setting.seed, f"{part}/{incarnation}"),
            faults=setting.faults,
            oracle=setting.oracle,
            later=process.later,
            work=self._aside_of(process),
            post=self.network.post,
            carry=self.network.carry,
        )
        process.perform, process.on_carried = body.perform, body.on_carried

    def _start_replica(self, part: Address, incarnation: int) -> None:
        relay = None if self._setting.hosts is None else self._setting.hosts.relay_of[part]
        brain = self._brains.rollout(self._setting.plan, replica=part.number, incarnation=incarnation, relay=relay)
        process = self._add(part, incarnation, brain)
        body = RolloutBody(
            self._setting,
            replica=part.number,
            incarnation=incarnation,
            clock=lambda: self._kernel.now,
            later=process.later,
            after=process.after,
            work=self._work_of(process),
            post=process.post,
        )
        process.perform, process.measure = body.perform, body.measure

    def _manage(self, effect: Effect) -> None:
        match effect:
            case EndPart():
                process = self._processes.get(effect.part)
                if process is not None and process.incarnation == effect.incarnation:
                    if effect.part.kind != "environment":  # the driver's oracle checks environments
                        self._demand_that_it_is_gone(process)
                    self.kill(effect.part)
                if self._setting.hosts is not None:
                    self._setting.hosts.on_end(effect.part)
                self.network.deliver(DRIVER, PartEnded(part=effect.part, incarnation=effect.incarnation))
            case StartPart():
                demand(effect.incarnation > self._incarnations.get(effect.part, -1), f"{effect} a second time")
                if self._setting.hosts is not None:
                    self._setting.hosts.on_start(effect)
                self._incarnations[effect.part] = effect.incarnation
                self._kernel.after(START_S, partial(self.start, effect.part, effect.incarnation))
                if effect.part == TRAINER:
                    self._driven.on_trainer_ordered(effect.incarnation)
                self.network.deliver(DRIVER, PartStarted(part=effect.part, incarnation=effect.incarnation))
            case _:
                raise TypeError(f"the manager's body does not do {type(effect).__name__}")

    def _drive(self, effect: Effect) -> None:
        match effect:
            case EndPart():
                environment = self._processes[effect.part]
                is_rested = environment.is_starved or self._kernel.now > environment.frozen_until + RESTED_S
                is_well = environment.is_alive and is_rested
                demand(not is_well, f"{effect}, although the environment is healthy")
                self._manage(effect)
            case StartPart():
                self._manage(effect)
            case EnterPhase() | AnnounceReady() | AnnounceSize() | Acknowledge() | EndRun():
                pass  # display only; the driver's oracle has seen the effect
            case _:
                raise TypeError(f"the driver's body does not do {type(effect).__name__}")

    # ── hosts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def change_hosts(self, blow: Blow) -> None:
        hosts = self._setting.hosts
        assert hosts is not None, "a blow to a host, and the run has none"
        if blow.kind == "host comes":
            hosts.add(f"host {self._kernel.now}")
            return
        (name,) = hosts.at[relay_address(blow.which)]
        for part in hosts.lose(name):
            self.kill(part)

    def _look_at_hosts(self) -> None:
        hosts = self._setting.hosts
        assert hosts is not None
        self.network.deliver(MANAGER, hosts.seen())
        self._kernel.after(LOOK_EVERY_S, self._look_at_hosts)

    def _is_homeless(self, part: Address) -> bool:
        """Whether the part's host disappeared while the part was starting."""
        hosts = self._setting.hosts
        return hosts is not None and part in hosts.at and not hosts.has(hosts.at[part])

    def hang(self, part: Address) -> None:
        """Hangs a part and demands that it is replaced within the stall limit of its current work."""
        process = self._processes[part]
        process.hangs = True
        within_s = PATIENCE.standstill_s(process.pulse.piece) + NOTICED_LATE_S

        def look() -> None:
            demand(not process.is_alive, f"{part} hangs since {within_s:.0f} s, in: {process.pulse.piece}")

        self._kernel.after(within_s, look)

    def starve(self, part: Address, lasts_s: float) -> None:
        process = self._processes[part]
        if process.frozen_until > self._kernel.now:  # a stopped process waits for no core
            return
        process.starve(lasts_s)
        self._kernel.after(ASKED_EVERY_S, partial(self._report_waits, process))

    def _report_waits(self, process: Process) -> None:
        """Reports waits for a core, as each host does live: to driver and manager, and to relays about relays."""
        if not (process.is_alive and process.is_starved):
            return
        part = process.part
        starved = PartStarved(part=part, incarnation=process.incarnation, waited_s=ASKED_EVERY_S)
        for receiver in (MANAGER, DRIVER):
            self.network.deliver(receiver, starved)
        for relay in self.parts_of("relay") if part.kind == "relay" else ():
            self.network.deliver(relay, CoreAwaited(host=part.number, waited_s=ASKED_EVERY_S))
        self._kernel.after(ASKED_EVERY_S, partial(self._report_waits, process))

    def _demand_that_it_is_gone(self, process: Process) -> None:
        has_left = (process.part, process.incarnation) in self._setting.oracle.left
        was_frozen = not process.is_starved and self._kernel.now < process.frozen_until + NEWS_S
        was_away = process.hangs or was_frozen
        is_gone = not process.is_alive or has_left or was_away
        demand(is_gone, f"{process.part} was replaced as dead, but is working: {process.pulse.piece}")
