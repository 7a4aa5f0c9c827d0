"""A sink that injects faults into a run."""

from collections.abc import Callable
from typing import Any

from engine.sinks.memory import MemorySink
from engine.spec.facts import FactBody, StepTrained


class Blows(MemorySink):
    """Strikes when a step is trained for the first time."""

    def __init__(self, blows: dict[int, Callable[[], None]]) -> None:
        super().__init__()
        self._blows = dict(blows)

    def record(self, body: FactBody) -> None:
        super().record(body)
        if isinstance(body, StepTrained) and body.step in self._blows:
            self._blows.pop(body.step)()

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.bodies if isinstance(body, kind)]
