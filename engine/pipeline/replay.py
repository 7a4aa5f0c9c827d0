"""A recorded run decides again: the same brain, the same messages, the same effects.

Invariants:
- a brain's effects follow from its arguments and from what it heard, and when, and from nothing else;
- a recording is made where the messages arrive, so it needs no network, no body and no clock to be run again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from engine.pipeline.data import DataBrain
from engine.pipeline.effects import Effect
from engine.pipeline.manager import ManagerBrain
from engine.pipeline.messages import Message
from engine.pipeline.relay import RelayBrain
from engine.pipeline.rollout import RolloutBrain
from engine.pipeline.trainer import TrainerBrain


class Brain(Protocol):
    def handle(self, message: Message, now: float) -> list[Effect]: ...


BRAINS: Final[Mapping[str, type[Brain]]] = {
    "data": DataBrain,
    "rollout": RolloutBrain,
    "relay": RelayBrain,
    "trainer": TrainerBrain,
    "manager": ManagerBrain,
}


@dataclass(slots=True, kw_only=True)
class Recording:
    """One incarnation of one component, from its start."""

    component: str
    arguments: Mapping[str, Any]
    heard: list[tuple[float, Message]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    now: float
    message: Message
    effects: Sequence[Effect]


def make_brain(component: str, arguments: Mapping[str, Any]) -> Brain:
    if component not in BRAINS:
        raise ValueError(f"component must be one of {', '.join(BRAINS)}, not {component!r}")
    return BRAINS[component](**arguments)


def replay(recording: Recording) -> Iterator[Decision]:
    brain = make_brain(recording.component, recording.arguments)
    for now, message in recording.heard:
        yield Decision(now=now, message=message, effects=tuple(brain.handle(message, now)))


class Recorder:
    """Stands where a brain stands, and remembers what it hears."""

    def __init__(self, component: str, **arguments: Any) -> None:
        self.recording = Recording(component=component, arguments=arguments)
        self.brain = make_brain(component, arguments)

    def handle(self, message: Message, now: float) -> list[Effect]:
        self.recording.heard.append((now, message))
        return self.brain.handle(message, now)
