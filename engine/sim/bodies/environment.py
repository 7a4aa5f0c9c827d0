"""An environment's simulated worker. Calls are not simulated: a sample ends once its worker is alive and answers."""

from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.addresses import DRIVER, Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_manager import PartReported


class EnvironmentWorker:
    """A worker in the place of a brain. It answers the driver's polls with a sign of life."""

    def __init__(self, part: Address, *, incarnation: int) -> None:
        self._alive = PartReported(part=part, incarnation=incarnation)

    def handle(self, message: Message, now: float) -> list[Effect]:
        return [Send(to=DRIVER, message=self._alive)]
