"""Data's actor. All of it is in the brain; the body only lends it a thread."""

from engine.live.actor import BodyActor
from engine.live.body import Body
from engine.pipeline.data import DataBrain
from engine.pipeline.effects import Effect
from engine.pipeline.messages import DATA, Message
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress
from engine.spec.job import JobSpec


class DataBody:
    tick_s = 0.5
    is_busy = False

    def __init__(self, brain: DataBrain) -> None:
        self.brain = brain

    def start(self) -> list[Message]:
        return []

    def perform(self, effect: Effect) -> list[Message]:
        raise TypeError(f"data's body does not do {type(effect).__name__}")

    def work(self) -> list[Message]:
        return []

    def measure(self, now: float) -> list[Message]:
        return []


class DataActor(BodyActor):
    def __init__(self, *, spec: JobSpec, start_step: int, progress: DataProgress) -> None:
        self._spec, self._start_step, self._progress = spec, start_step, progress
        super().__init__(name=DATA)

    def build(self) -> Body:
        plan = Plan.from_spec(self._spec)
        return DataBody(DataBrain(plan, start_step=self._start_step, progress=self._progress))
