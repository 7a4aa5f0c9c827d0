"""A trainer that copied the base weights before it loaded its checkpoint: relays get them before any other version."""

from dataclasses import replace

import pytest

from engine.pipeline.effects import Effect, ForgetWeights, PublishWeights, RepublishWeights
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import BatchWanted, PauseRequested, ResumedFrom
from engine.pipeline.messages.to_driver import TrainerPaused, TrainerReady
from engine.pipeline.messages.to_manager import WeightsUpdated
from engine.pipeline.messages.to_trainer import TrainerLoaded, VersionRefused, VersionStored
from engine.pipeline.records import DataProgress
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.lineage import BASE_WEIGHTS, WeightsId
from tests.engine.pipeline.brain_builders import PLAN as SHORT
from tests.engine.pipeline.brain_builders import of

PLAN = replace(SHORT, steps=9)
PROGRESS = DataProgress(base_is_due=True)
OFFER = RepublishWeights(weights=BASE_WEIGHTS, pinned=True)


def loaded(epoch: int = 0) -> tuple[TrainerBrain, list[Effect]]:
    brain = TrainerBrain(PLAN, epoch=epoch)
    message = TrainerLoaded(step=2, num_parameters=1, progress=PROGRESS, holds_base=True)
    return brain, brain.handle(message, 0.0)


@pytest.mark.parametrize("epoch", [0, 1])
def test_nothing_else_is_published_before_relays_have_the_base(epoch: int) -> None:
    brain, effects = loaded(epoch)
    assert of(effects, RepublishWeights) == [OFFER] and of(effects, TrainerReady)
    assert not of(effects, PublishWeights) and not of(effects, BatchWanted) and not of(effects, WeightsUpdated)
    assert brain.handle(VersionStored(weights=WeightsId(epoch, 2)), 1.0) == []
    effects = brain.handle(VersionStored(weights=BASE_WEIGHTS), 2.0)
    kinds = [effect for effect in effects if isinstance(effect, ForgetWeights | PublishWeights)]
    newest = PublishWeights(weights=WeightsId(epoch, 2), pinned=False)
    assert kinds == [ForgetWeights(weights=BASE_WEIGHTS), newest], "one copy at a time"
    resumed = ResumedFrom(step=2, progress=PROGRESS)
    assert of(effects, BatchWanted) == [BatchWanted(step=3, epoch=epoch, checkpointed=2, resumed=resumed)]


def test_base_is_offered_until_it_is_stored() -> None:
    brain, _ = loaded()
    assert of(brain.handle(Tick(), 12.0), RepublishWeights) == [OFFER]
    assert brain.handle(VersionRefused(weights=BASE_WEIGHTS, reason="hash"), 13.0) == [OFFER]
    brain.handle(VersionStored(weights=BASE_WEIGHTS), 14.0)
    assert BASE_WEIGHTS not in [offer.weights for offer in of(brain.handle(Tick(), 30.0), RepublishWeights)]
    assert of(brain.handle(VersionStored(weights=BASE_WEIGHTS), 31.0), PublishWeights) == [], "a duplicate"


def test_pause_waits_for_the_base_and_trains_nothing() -> None:
    brain, _ = loaded()
    assert brain.handle(PauseRequested(), 1.0) == []
    effects = brain.handle(VersionStored(weights=BASE_WEIGHTS), 2.0)
    assert of(effects, TrainerPaused) == [TrainerPaused(step=2, checkpointed=2)] and not of(effects, BatchWanted)
