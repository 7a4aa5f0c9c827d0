"""Trainers of a test, by its module's sharding."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.training.trainer import Trainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import MakeTrainer, trainer_of
from tests.engine.training.trainer_parts_conformance import MakeLayout, save_qwen


@pytest.fixture
def build() -> MakeTrainer:
    """Builds a trainer that the test closes. Replaced by modules of other shardings than the whole one."""
    return trainer_of


@pytest.fixture
def make_trainer(build: MakeTrainer) -> Iterator[MakeTrainer]:
    """A test's trainers live at the same time."""
    trainers: list[Trainer] = []

    def make(folder: Path, **given: Any) -> Trainer:
        trainers.append(build(folder, **given))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.close()


@pytest.fixture
def make_layout(make_llama: MakeLlama, tmp_path_factory: pytest.TempPathFactory) -> MakeLayout:
    """Small random models: Llama, Qwen2 with biases, Qwen3 with query and key norms, and its mixture."""
    return lambda layout: make_llama() if layout == "llama" else save_qwen(tmp_path_factory.mktemp(layout), layout)
