"""FSDP2 in one process: the conformance suites, and what only its weights need."""

from pathlib import Path
from typing import Literal

import pytest
import torch
from torch.distributed.tensor import DTensor

from engine.models.loading import load_decoder
from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, KlSpec, OptimizerSpec
from engine.training.checkpoint.folder import MANIFEST_FILE
from engine.training.factory import ALONE, build_trainer
from engine.training.parts.exact_dtype import WrongDtype
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks_conformance import RanksConformance
from tests.engine.training.sharding_conformance import ShardingConformance
from tests.engine.training.trainer_conformance import (
    MakeTrainer,
    save,
    settings,
    trainer_of,
    trajectories_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def build() -> MakeTrainer:
    return lambda folder, **given: build_trainer(folder, settings(**given), device="cpu", world=ALONE)


class TestFsdp(ShardingConformance):
    pass


@pytest.mark.long_except(*(name for name in vars(RanksConformance) if "checkpoints_equal" not in name))
class TestFsdpRanks(RanksConformance):
    pass


def test_snapshot_equals_the_whole_trainers(make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
    folder = make_llama(dtype="bfloat16")
    trainers = make_trainer(folder), trainer_of(folder)
    ours, theirs = (trainer.snapshot(WeightsId(0, 0)) for trainer in trainers)
    assert ours.manifest == theirs.manifest
    assert {tensor.dtype for tensor in map_weights(ours).values()} == {torch.bfloat16}


def test_rotary_tables_equal_those_of_a_loaded_model(make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
    """The tables are not stored in any file."""
    trainer = make_trainer(make_llama())
    loaded = load_decoder(make_llama(), device="cpu")
    for name, table in loaded.named_buffers():
        assert torch.equal(dict(trainer._model.named_buffers())[name], table), name


def test_weights_that_are_not_float32_are_named_after_a_load(
    make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
) -> None:
    trainer = make_trainer(make_llama(), algorithm=AlgorithmSpec(kl=KlSpec(coefficient=0.1)))
    saved = save(trainer, tmp_path)
    trainer.load(saved)
    rounded = trainer._modules["reference"].final_norm_D
    assert isinstance(rounded, DTensor)
    rounded._local_tensor = rounded.to_local().detach().bfloat16()
    with pytest.raises(WrongDtype, match=r"float32: reference's final_norm_D is bfloat16$"):
        trainer.load(saved)


@pytest.mark.parametrize("moments", ["bfloat16", "float8"])
def test_small_moments_are_saved_and_loaded_unchanged(
    make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path, moments: Literal["bfloat16", "float8"]
) -> None:
    rounded = OptimizerSpec(learning_rate=1e-2, warmup_steps=0, moments=moments)
    theirs = trainer_of(make_llama(), optimizer=rounded)
    theirs.train_step(trajectories_of(0))
    saved = save(theirs, tmp_path / "theirs")
    ours = make_trainer(make_llama(), optimizer=rounded)
    ours.load(saved)
    assert (save(ours, tmp_path / "ours") / MANIFEST_FILE).read_bytes() == (saved / MANIFEST_FILE).read_bytes()
    assert ours.train_step(trajectories_of(1)).metrics["train/skipped"] == 0.0
