"""An environment's simulated worker: it answers, or it does not. What it is asked is not simulated: a sample ends once
its worker answers.
"""

from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.addresses import DRIVER, Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_manager import PartReported


class EnvironmentWorker:
    """A worker in the place of a brain. Its answers to the driver's polls say that it lives."""

    def __init__(self, part: Address, *, incarnation: int) -> None:
        self._alive = PartReported(part=part, incarnation=incarnation)

    def handle(self, message: Message, now: float) -> list[Effect]:
        return [Send(to=DRIVER, message=self._alive)]
