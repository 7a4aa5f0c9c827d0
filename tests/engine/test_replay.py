"""A recorded run decides again what it decided."""

from copy import deepcopy
from typing import Any

import pytest

from engine.pipeline.data import DataBrain
from engine.pipeline.effects import Effect
from engine.pipeline.manager import ManagerBrain
from engine.pipeline.messages import Message, Tick
from engine.pipeline.relay import RelayBrain
from engine.pipeline.replay import Recorder, make_brain, replay
from engine.pipeline.rollout import RolloutBrain
from engine.pipeline.trainer import TrainerBrain
from engine.sim.scenario import world_of
from engine.sim.world import Brains

RECORDERS: list[tuple[Recorder, list[list[Effect]]]] = []


def recorded(component: str, kind: type) -> type:
    """The brain, with somebody who writes down what it hears and what it decides."""

    class Recorded(kind):  # type: ignore[misc]
        def __init__(self, *positional: Any, **options: Any) -> None:
            arguments = {**dict(zip(["plan"], positional, strict=False)), **options}
            # The manager's repacker has a state of its own: the recording keeps it as it was.
            self._recorder = Recorder(component, **deepcopy(arguments))
            self._decided: list[list[Effect]] = []
            RECORDERS.append((self._recorder, self._decided))
            super().__init__(*positional, **options)

        def handle(self, message: Message, now: float) -> list[Effect]:
            effects: list[Effect] = super().handle(message, now)
            self._recorder.recording.heard.append((now, message))
            self._decided.append(list(effects))
            return effects

    return Recorded


@pytest.fixture
def recorders() -> list[tuple[Recorder, list[list[Effect]]]]:
    RECORDERS.clear()
    return RECORDERS


def test_every_component_decides_again_what_it_decided(
    recorders: list[tuple[Recorder, list[list[Effect]]]],
) -> None:
    brains = Brains(
        data=recorded("data", DataBrain),
        rollout=recorded("rollout", RolloutBrain),
        relay=recorded("relay", RelayBrain),
        trainer=recorded("trainer", TrainerBrain),
        manager=recorded("manager", ManagerBrain),
    )
    for seed in (2, 21):
        world_of(seed, "laminar", brains=brains).run()
    components = {recorder.recording.component for recorder, _ in recorders}
    assert components == {"data", "rollout", "relay", "trainer", "manager"}
    for recorder, decided in recorders:
        again = [list(decision.effects) for decision in replay(recorder.recording)]
        assert again == decided and again


def test_a_recorder_stands_where_a_brain_stands() -> None:
    recorder = Recorder("manager", now=0.0, num_replicas=1)
    effects = recorder.handle(Tick(), 400.0)
    (decision,) = replay(recorder.recording)
    assert list(decision.effects) == effects and effects


def test_an_unknown_component_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="one of data, rollout, relay, trainer, manager, not 'x'"):
        make_brain("x", {})
