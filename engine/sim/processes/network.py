"""The network between the processes: it loses, duplicates, delays and reorders their messages.

Invariant: the oracle sees every message that is sent, lost or not.
"""

from collections.abc import Mapping
from functools import partial

from engine.pipeline.messages.addresses import Address, relay_address, rollout_address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_data import ReplicaSynced
from engine.pipeline.messages.to_manager import ReplicaLeft
from engine.pipeline.messages.to_rollout import WorkGranted
from engine.pipeline.messages.to_trainer import BatchReady
from engine.sim.bodies.relay import CarriedChunk
from engine.sim.chance import Chance
from engine.sim.kernel import Kernel
from engine.sim.processes.process import Process
from engine.sim.setting import Setting


class Network:
    def __init__(
        self,
        setting: Setting,
        *,
        kernel: Kernel,
        chance: Chance,
        processes: Mapping[Address, Process],
    ) -> None:
        self._faults, self._oracle = setting.faults, setting.oracle
        self._kernel, self._chance = kernel, chance
        self._processes = processes

    def post(self, to: Address, message: Message) -> None:
        self._observe(message)
        faults = self._faults
        copies = 2 if faults.duplicate and self._chance.happens(faults.duplicate) else 1
        for _ in range(copies):
            if not (faults.drop and self._chance.happens(faults.drop)):
                delay_s = self._chance.uniform(0, faults.delay_s)
                self._kernel.after(delay_s, partial(self.deliver, to, message))

    def deliver(self, to: Address, message: Message) -> None:
        process = self._processes.get(to)
        if process is not None:
            process.receive(message)

    def carry(self, host: int, chunk: CarriedChunk) -> None:
        if not self._chance.happens(self._faults.drop):
            delay_s = self._chance.uniform(0, self._faults.delay_s)
            self._kernel.after(delay_s, partial(self._arrive, relay_address(host), chunk))

    def _arrive(self, to: Address, chunk: CarriedChunk) -> None:
        process = self._processes.get(to)
        if process is not None and process.on_carried is not None:
            process.do(partial(process.on_carried, chunk))

    def _observe(self, message: Message) -> None:
        match message:
            case WorkGranted():
                self._oracle.on_granted(message)
            case ReplicaSynced():
                self._oracle.on_delivered(message.finished)
            case BatchReady():
                self._oracle.on_batch(message)
            case ReplicaLeft():
                self._oracle.left.add((rollout_address(message.replica), message.incarnation))
