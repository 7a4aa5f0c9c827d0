"""FSDP2 in one process: the trainer conformance suite, and the torch trainer's steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as torch_distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor

import engine.training.step.head as head
from engine.models.loading import load_decoder
from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, KlSpec, OptimizerSpec, TrainerSpec
from engine.training.checkpoint.folder import MANIFEST_FILE
from engine.training.fsdp.trainer import FsdpTrainer
from engine.training.parts.exact_dtype import WrongDtype
from engine.training.torch_trainer import TorchTrainer
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama
from tests.engine.training.same_steps_conformance import SameStepsConformance
from tests.engine.training.step.mini_batch_conformance import MiniBatchConformance
from tests.engine.training.trainer_conformance import (
    MakeTrainer,
    TrainerConformance,
    hash_of,
    save,
    settings,
    trajectories_of,
)
from tests.engine.training.trainer_parts_conformance import PartsConformance
from tests.engine.training.trainer_parts_conformance import make_layout as make_layout

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def make_trainer() -> Iterator[MakeTrainer]:
    """A test's trainers live at the same time."""
    trainers: list[FsdpTrainer] = []

    def make(folder: Path, **given: Any) -> FsdpTrainer:
        trainers.append(FsdpTrainer(folder, settings(**given), device="cpu"))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.close()


class TestFsdpTrainer(TrainerConformance):
    pass


class TestFsdpTrainersParts(PartsConformance):
    pass


class TestFsdpTrainersMiniBatches(MiniBatchConformance):
    pass


@pytest.mark.long_except("test_checkpoint_with_critic_or_adapter_is_refused_without")
class TestFsdpTrainersPartsAreTorchs(SameStepsConformance):
    pass


def test_snapshot_equals_the_torch_trainers(make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
    folder = make_llama(dtype="bfloat16")
    trainers = make_trainer(folder), TorchTrainer(folder, settings(), device="cpu")
    ours, theirs = (trainer.snapshot(WeightsId(0, 0)) for trainer in trainers)
    assert ours.manifest == theirs.manifest
    assert {tensor.dtype for tensor in map_weights(ours).values()} == {torch.bfloat16}


def test_rotary_tables_equal_those_of_a_loaded_model(make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
    """The tables are not stored in any file."""
    trainer = make_trainer(make_llama())
    loaded = load_decoder(make_llama(), device="cpu")
    assert isinstance(trainer, FsdpTrainer)
    for name, table in loaded.named_buffers():
        assert torch.equal(dict(trainer._model.named_buffers())[name], table), name


def test_weights_that_are_not_float32_are_named_after_a_load(
    make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
) -> None:
    trainer = make_trainer(make_llama(), algorithm=AlgorithmSpec(kl=KlSpec(coefficient=0.1)))
    saved = save(trainer, tmp_path)
    trainer.load(saved)
    assert isinstance(trainer, FsdpTrainer)
    rounded = trainer._modules["reference"].final_norm_D
    assert isinstance(rounded, DTensor)
    rounded._local_tensor = rounded.to_local().detach().bfloat16()
    with pytest.raises(WrongDtype, match=r"float32: reference's final_norm_D is bfloat16$"):
        trainer.load(saved)


def test_logits_in_chunks_give_the_same_gradient(
    make_trainer: MakeTrainer, make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is recomputed in the backward pass, for which the head is gathered again."""
    norms = []
    for chunk in (head.LOGITS_ON_A_CPU, 40 * 16):
        monkeypatch.setattr(head, "LOGITS_ON_A_CPU", chunk)
        trainer = make_trainer(make_llama())
        norms.append([trainer.train_step(trajectories_of(seed)).metrics["train/grad_norm"] for seed in range(2)])
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.parametrize("spec", [TrainerSpec(), TrainerSpec(lora_rank=3)], ids=["whole", "adapter"])
def test_bfloat16_compute_is_near_float32_and_keeps_its_weights(
    make_trainer: MakeTrainer, make_llama: MakeLlama, spec: TrainerSpec
) -> None:
    exact, trainer = (
        make_trainer(make_llama(), trainer=spec.model_copy(update={"compute_dtype": dtype}))
        for dtype in ("float32", "bfloat16")
    )
    expected, near = (each.train_step(trajectories_of(0)).metrics for each in (exact, trainer))
    assert near["train/loss"] == pytest.approx(expected["train/loss"], abs=0.02)
    assert near["train/loss"] != expected["train/loss"]
    assert near["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=0.05)
    assert isinstance(trainer, FsdpTrainer)
    assert {parameter.dtype for parameter in trainer._model.parameters()} == {torch.float32}


@pytest.mark.parametrize("moments", ["bfloat16", "float8"])
def test_small_moments_are_saved_and_loaded_unchanged(
    make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path, moments: Literal["bfloat16", "float8"]
) -> None:
    rounded = OptimizerSpec(learning_rate=1e-2, warmup_steps=0, moments=moments)
    theirs = TorchTrainer(make_llama(), settings(optimizer=rounded), device="cpu")
    theirs.train_step(trajectories_of(0))
    saved = save(theirs, tmp_path / "theirs")
    ours = make_trainer(make_llama(), optimizer=rounded)
    ours.load(saved)
    assert (save(ours, tmp_path / "ours") / MANIFEST_FILE).read_bytes() == (saved / MANIFEST_FILE).read_bytes()
    assert ours.train_step(trajectories_of(1)).metrics["train/skipped"] == 0.0


# Process state --------------------------------------------------------------------------------------------------------


def test_trainers_in_one_process_are_independent_and_clean_up(make_llama: MakeLlama) -> None:
    """The world lasts until the last trainer has left, and can be entered again."""
    first, second = (FsdpTrainer(make_llama(), settings(), device="cpu") for _ in range(2))
    untouched = hash_of(second)
    first.train_step(trajectories_of(0))
    assert hash_of(second) == untouched != hash_of(first)
    first.close()
    second.train_step(trajectories_of(0))
    second.close()
    assert not torch_distributed.is_initialized()
    third = FsdpTrainer(make_llama(), settings(), device="cpu")
    assert hash_of(third) == untouched
    third.close()


def test_process_group_of_other_code_is_left_alone(make_llama: MakeLlama) -> None:
    torch_distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="process group"):
            FsdpTrainer(make_llama(), settings(), device="cpu")
        assert torch_distributed.get_world_size() == 1
    finally:
        torch_distributed.destroy_process_group()


def test_unreadable_model_leaves_no_process_group_behind(make_llama: MakeLlama, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((make_llama() / "config.json").read_bytes())
    with pytest.raises((OSError, ValueError)):
        FsdpTrainer(tmp_path, settings(), device="cpu")
    assert not torch_distributed.is_initialized()
