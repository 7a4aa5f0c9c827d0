"""The trainer of a job without steps: it publishes the initial weights and has finished."""

from dataclasses import replace

import pytest

from engine.pipeline.effects import PublishWeights, SaveCheckpoint
from engine.pipeline.messages.to_data import BatchWanted, PauseRequested, TrainingEnded
from engine.pipeline.messages.to_driver import PartFinished, TrainerPaused
from engine.pipeline.messages.to_trainer import TrainerLoaded
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.lineage import WeightsId
from tests.engine.pipeline.brain_builders import PLAN as WIDE
from tests.engine.pipeline.brain_builders import of

PLAN = replace(WIDE, steps=0)
STEP = 50


def test_trainer_publishes_its_weights_and_finishes() -> None:
    effects = TrainerBrain(PLAN).handle(TrainerLoaded(step=STEP, num_parameters=1), 0.0)
    assert of(effects, PublishWeights) == [PublishWeights(weights=WeightsId(0, STEP), pinned=True)]
    assert [ended.weights for ended in of(effects, TrainingEnded)] == [WeightsId(0, STEP)]
    assert of(effects, PartFinished) == [PartFinished(part="trainer")]
    assert of(effects, BatchWanted) == of(effects, SaveCheckpoint) == []


@pytest.mark.parametrize("is_loaded_first", [True, False])
def test_evaluation_pauses_at_once(is_loaded_first: bool) -> None:
    messages: list[TrainerLoaded | PauseRequested] = [TrainerLoaded(step=STEP, num_parameters=1), PauseRequested()]
    brain = TrainerBrain(PLAN)
    effects = [brain.handle(message, 0.0) for message in (messages if is_loaded_first else messages[::-1])]
    assert of(effects[-1], TrainerPaused) == [TrainerPaused(step=STEP, checkpointed=STEP)]
