"""Every promise of a trainer, kept by DeepSpeed's ZeRO 1, 2 and 3 in one process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engine.training.deepspeed_sharding as sharding
from engine.spec.job import TrainerSpec
from engine.training.deepspeed_trainer import DeepSpeedTrainer
from tests.engine.trainer_conformance import MakeTrainer, TrainerConformance, settings

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[1, 2, 3])
def make_trainer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeTrainer]:
    """Trainers of one test live side by side."""
    monkeypatch.setattr(sharding, "PERSISTENT_NUMEL", 0)  # of so small a model, stage 3 would divide nothing
    made: list[DeepSpeedTrainer] = []

    def make(folder: Path, *, trainer: TrainerSpec | None = None, **given: Any) -> DeepSpeedTrainer:
        asked = (trainer or TrainerSpec()).model_copy(update={"backend": "deepspeed", "zero_stage": request.param})
        made.append(DeepSpeedTrainer(folder, **{**settings(), **given, "trainer": asked}))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


class TestDeepSpeedTrainer(TrainerConformance):
    pass
