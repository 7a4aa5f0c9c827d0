"""Every promise of a trainer, kept by DeepSpeed's ZeRO 1, 2 and 3 in one process; and the torch trainer's steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import engine.training.deepspeed_sharding as sharding
from engine.spec.job import AlgorithmSpec, KlSpec, OptimizerSpec, TrainerSpec
from engine.training.checkpoint import MANIFEST_FILE
from engine.training.deepspeed_trainer import DeepSpeedTrainer
from engine.training.layout import whole_shape
from engine.training.torch_trainer import TorchTrainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.mini_batch_conformance import MiniBatchConformance
from tests.engine.training.trainer_conformance import (
    SMOOTH_EPS,
    MakeTrainer,
    TrainerConformance,
    assert_same_steps,
    save,
    settings,
    trajectories_of,
)
from tests.engine.training.trainer_parts_conformance import LORA, PPO, WITH_KL, PartsConformance
from tests.engine.training.trainer_parts_conformance import make_layout as make_layout

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[1, 2, 3])
def make_trainer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeTrainer]:
    """Trainers of one test live side by side."""
    monkeypatch.setattr(sharding, "PERSISTENT_NUMEL", 0)  # of so small a model, stage 3 would divide nothing
    made: list[DeepSpeedTrainer] = []

    def make(folder: Path, *, trainer: TrainerSpec | None = None, **given: Any) -> DeepSpeedTrainer:
        asked = (trainer or TrainerSpec()).model_copy(update={"backend": "deepspeed", "zero_stage": request.param})
        made.append(DeepSpeedTrainer(folder, settings(trainer=asked, **given), device="cpu"))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


class TestDeepSpeedTrainer(TrainerConformance):
    pass


class TestDeepSpeedTrainersParts(PartsConformance):
    pass


class TestDeepSpeedTrainersMiniBatches(MiniBatchConformance):
    pass


@pytest.mark.parametrize(
    ("algorithm", "trainer"),
    [
        (AlgorithmSpec(name="ppo", kl=WITH_KL), TrainerSpec(micro_batch_tokens=60)),
        (AlgorithmSpec(name="gspo", kl=KlSpec(coefficient=0.1, estimator="k1")), LORA),
        (AlgorithmSpec(name="ppo", kl=WITH_KL, entropy_coefficient=0.01), LORA),
    ],
    ids=["critic", "adapter", "both"],
)
def test_critic_reference_and_adapter_take_the_torch_trainers_steps_and_each_goes_on_from_the_other(
    make_trainer: MakeTrainer,
    make_llama: MakeLlama,
    tmp_path: Path,
    algorithm: AlgorithmSpec,
    trainer: TrainerSpec,
) -> None:
    """Gradients show in their norms and the moments, and all of it in the float32 weights."""
    folder = make_llama(dtype="bfloat16")
    optimizer = OptimizerSpec(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1, eps=SMOOTH_EPS)
    asked: dict[str, Any] = {"algorithm": algorithm, "optimizer": optimizer, "trainer": trainer}
    theirs, ours = TorchTrainer(folder, settings(**asked), device="cpu"), make_trainer(folder, **asked)
    told = [[each.train_step(trajectories_of(step)).metrics for step in range(3)] for each in (theirs, ours)]
    saved = {each: save(each, tmp_path / name) for name, each in (("theirs", theirs), ("ours", ours))}
    assert_same_steps(told[1], saved[ours], expected=told[0], expected_checkpoint=saved[theirs])
    for number, (loads, of) in enumerate(((theirs, ours), (ours, theirs))):
        loads.load(saved[of])
        again = save(loads, tmp_path / str(number))
        assert (again / MANIFEST_FILE).read_bytes() == (saved[of] / MANIFEST_FILE).read_bytes()


def test_moments_in_bfloat16_are_taken_over_from_the_torch_trainer(
    make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
) -> None:
    rounded = OptimizerSpec(learning_rate=1e-2, warmup_steps=0, moments="bfloat16")
    theirs = TorchTrainer(make_llama(), settings(optimizer=rounded), device="cpu")
    theirs.train_step(trajectories_of(0))
    ours = make_trainer(make_llama())
    ours.load(save(theirs, tmp_path / "theirs"))
    taken = load_file(save(ours, tmp_path / "ours") / "optimizer.safetensors")
    for name, tensor in load_file(tmp_path / "theirs" / "optimizer.safetensors").items():
        assert torch.equal(taken[name], tensor.to(taken[name].dtype))


def test_of_a_base_that_is_not_trained_each_rank_keeps_its_part_only(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage 3: the first layer's input needs no gradient, so its end in the backward pass shows nowhere."""
    monkeypatch.setattr(sharding, "PERSISTENT_NUMEL", 0)
    asked = LORA.model_copy(update={"backend": "deepspeed", "zero_stage": 3})
    trainer = DeepSpeedTrainer(make_llama(), settings(trainer=asked, algorithm=AlgorithmSpec(kl=WITH_KL)), device="cpu")
    try:
        for step in range(3):
            trainer.train_step(trajectories_of(step))
            assert {parameter.numel() for parameter in trainer._model.parameters()} == {0}
    finally:
        trainer.close()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_part_takes_no_more_memory_for_the_exchange_of_gradients_than_it_has(
    make_llama: MakeLlama, stage: int
) -> None:
    """DeepSpeed's own choice is 2 GB for each part."""
    asked = LORA.model_copy(update={"backend": "deepspeed", "zero_stage": stage})
    trainer = DeepSpeedTrainer(make_llama(), settings(trainer=asked), device="cpu")
    try:
        assert trainer._adapter is not None
        trained = sum(whole_shape(parameter).numel() for parameter in trainer._adapter.parameters.values())
        assert trainer._parts[0]._engine.optimizer.reduce_bucket_size == trained < trainer.num_parameters
    finally:
        trainer.close()


def test_what_was_trained_with_a_critic_or_an_adapter_is_not_gone_on_from_without(
    make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
) -> None:
    plain = make_trainer(make_llama())
    others: list[dict[str, Any]] = [{"algorithm": PPO}, {"trainer": LORA}]
    for number, asked in enumerate(others):
        saved = save(make_trainer(make_llama(), **asked), tmp_path / str(number))
        with pytest.raises(ValueError, match="another critic or adapter"):
            plain.load(saved)
