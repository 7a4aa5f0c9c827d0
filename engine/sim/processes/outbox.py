"""The outbox of a process: its messages to the driver, which fetches them call by call.

Invariants: messages of one process arrive in order, late and perhaps twice; messages of different processes have no
order; messages not fetched when the process dies are lost; a frozen driver fetches nothing.
"""

from functools import partial

from engine.pipeline.messages.message import Message
from engine.sim.chance import Chance
from engine.sim.faults import Faults
from engine.sim.kernel import Kernel
from engine.sim.processes.process import Process


class Outbox:
    def __init__(self, faults: Faults, *, chance: Chance, kernel: Kernel, sender: Process, driver: Process) -> None:
        self._faults, self._chance, self._kernel = faults, chance, kernel
        self._sender, self._driver = sender, driver
        self._last_at = 0.0

    def put(self, message: Message) -> None:
        copies = 2 if self._faults.duplicate and self._chance.happens(self._faults.duplicate) else 1
        for _ in range(copies):
            self._last_at = max(self._last_at, self._kernel.now + self._chance.uniform(0, self._faults.delay_s))
            self._kernel.at(self._last_at, partial(self._arrive, message))

    def _arrive(self, message: Message) -> None:
        if self._driver.frozen_until > self._kernel.now:
            self._kernel.at(self._driver.frozen_until, partial(self._arrive, message))
        elif self._sender.is_alive:
            self._driver.receive(message)
