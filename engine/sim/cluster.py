"""The processes of a run, brains in simulated bodies: started and killed, by the manager's body too.

Invariants:
- every brain is the one that runs live;
- what is said to a part reaches its newest process; each has a higher incarnation than the one before;
- what survives a process is on the cluster's disks: data's log, the trainer's checkpoints.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from engine.pipeline.data.brain import DataBrain
from engine.pipeline.effects import Effect, EndPart, StartPart
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.addresses import DATA, MANAGER, TRAINER, Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_trainer import TrainerLoaded
from engine.pipeline.relay.brain import RelayBrain
from engine.pipeline.rollout.brain import RolloutBrain
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.recovery import Patience
from engine.sim.bodies import CheckpointStore, DataBody, Log, TrainerBody
from engine.sim.chance import Chance
from engine.sim.checks import demand
from engine.sim.kernel import Kernel
from engine.sim.network import Network
from engine.sim.process import TICK_S, Brain, Process
from engine.sim.relay_bodies import RelayBody
from engine.sim.rollout_body import RolloutBody
from engine.sim.setting import Setting

START_S: Final = 3.0
# In proportion to what things cost here.
REPACK_EVERY_S: Final = 0.5
PATIENCE: Final = Patience(silent_s=5.0, trainer_silent_s=8.0, trainer_least_s=4.0, start_s=20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brains:
    """What is under test; a planted bug is another class."""

    data: type[DataBrain] = DataBrain
    rollout: type[RolloutBrain] = RolloutBrain
    relay: type[RelayBrain] = RelayBrain
    trainer: type[TrainerBrain] = TrainerBrain
    manager: type[ManagerBrain] = ManagerBrain


class Cluster:
    def __init__(
        self,
        setting: Setting,
        *,
        kernel: Kernel,
        brains: Brains,
        report: Callable[[Message], None],
        note: Callable[[Brain, Effect], None],
    ) -> None:
        """`report`: to the driver; `note`: is told every effect before it is carried out."""
        self._setting, self._kernel, self._brains, self._note = setting, kernel, brains, note
        self._processes: dict[Address, Process] = {}
        self._incarnations: dict[Address, int] = {}
        """The highest of each part that was started or ordered."""
        self._chance = Chance(setting.seed, "network")
        self.network = Network(setting, kernel=kernel, chance=self._chance, processes=self._processes, report=report)
        self._log = Log()
        self._store = CheckpointStore(saved={setting.start_step: DataBrain(setting.plan).progress})

    def parts_of(self, kind: str) -> list[Address]:
        parts = (part for part in self._processes if part.kind == kind)
        return sorted(parts, key=lambda part: part.number)

    def process(self, part: Address) -> Process:
        return self._processes[part]

    def start(self, part: Address, incarnation: int) -> None:
        if self._incarnations.get(part, -1) > incarnation:
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
            case _:
                raise ValueError(f"the manager does not start {part}")

    def start_manager(self) -> None:
        incarnations = {part: number for part, number in self._incarnations.items() if part != MANAGER}
        brain = self._brains.manager(
            now=self._kernel.now,
            incarnations=incarnations,
            repacker=Repacker.for_plan(self._setting.plan, every_s=REPACK_EVERY_S),
            patience=PATIENCE,
        )
        process = self._add(MANAGER, self._incarnations.get(MANAGER, -1) + 1, brain)
        process.perform = self._manage

    def kill(self, part: Address) -> None:
        self._processes[part].is_alive = False
        if part.kind == "rollout":
            self._setting.oracle.on_death(part.number)

    def _add(self, part: Address, incarnation: int, brain: Brain) -> Process:
        process = Process(
            incarnation=incarnation, brain=brain, kernel=self._kernel, post=self.network.post, note=self._note
        )
        self._processes[part], self._incarnations[part] = process, incarnation
        process.after(self._chance.uniform(0, TICK_S), process.tick)
        return process

    def _start_data(self, incarnation: int) -> None:
        setting = self._setting
        if incarnation == 0:
            brain = self._brains.data(setting.plan, start_step=setting.start_step)
        else:
            brain = self._brains.data(
                setting.plan,
                start_step=setting.start_step,
                incarnation=incarnation,
                recovered=self._log.recovered(),
            )
            setting.oracle.on_recovered(brain.state)
        process = self._add(DATA, incarnation, brain)
        process.perform = DataBody(
            log=self._log, costs=setting.costs, oracle=setting.oracle, later=process.later, after=process.after
        ).perform

    def _start_trainer(self, epoch: int) -> None:
        setting = self._setting
        chance = Chance(setting.seed, f"trainer/{epoch}")
        process = self._add(TRAINER, epoch, self._brains.trainer(setting.plan, epoch=epoch))
        process.perform = TrainerBody(
            epoch=epoch,
            chance=chance,
            faults=setting.faults,
            costs=setting.costs,
            store=self._store,
            oracle=setting.oracle,
            later=process.later,
            after=process.after,
            post=self.network.post,
        ).perform
        step = self._store.go_back(is_rotten=epoch > 0 and chance.happens(setting.faults.rotten))
        setting.oracle.on_trainer(epoch, step)
        progress = self._store.saved[step] if epoch > 0 else None
        process.later(0.5, TrainerLoaded(step=step, num_parameters=1, progress=progress))

    def _start_relay(self, part: Address, incarnation: int) -> None:
        setting = self._setting
        hosts = tuple(range(setting.plan.num_relays))
        brain = self._brains.relay(host=part.number, hosts=hosts, incarnation=incarnation)
        process = self._add(part, incarnation, brain)
        body = RelayBody(
            chance=Chance(setting.seed, f"{part}/{incarnation}"),
            faults=setting.faults,
            oracle=setting.oracle,
            later=process.later,
            post=self.network.post,
            carry=self.network.carry,
        )
        process.perform, process.on_carried = body.perform, body.on_carried

    def _start_replica(self, part: Address, incarnation: int) -> None:
        brain = self._brains.rollout(self._setting.plan, replica=part.number, incarnation=incarnation)
        process = self._add(part, incarnation, brain)
        body = RolloutBody(
            self._setting,
            replica=part.number,
            clock=lambda: self._kernel.now,
            later=process.later,
            after=process.after,
            post=self.network.post,
        )
        process.perform, process.measure = body.perform, body.measure

    def _manage(self, effect: Effect) -> None:
        match effect:
            case EndPart():
                process = self._processes.get(effect.part)
                if process is not None and process.incarnation == effect.incarnation:
                    self.kill(effect.part)
            case StartPart():
                demand(effect.incarnation > self._incarnations[effect.part], f"{effect} a second time")
                self._incarnations[effect.part] = effect.incarnation
                self._kernel.after(START_S, partial(self.start, effect.part, effect.incarnation))
            case _:
                raise TypeError(f"the manager's body does not do {type(effect).__name__}")
