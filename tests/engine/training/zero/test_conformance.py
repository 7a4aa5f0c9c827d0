"""DeepSpeed's ZeRO 1, 2 and 3 in one process: the trainer conformance suite, and the torch trainer's steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import engine.training.zero.sharding as sharding
from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
from engine.training.parts.layout import whole_shape
from engine.training.torch_trainer import TorchTrainer
from engine.training.zero.trainer import DeepSpeedTrainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.same_steps_conformance import SameStepsConformance
from tests.engine.training.step.mini_batch_conformance import MiniBatchConformance
from tests.engine.training.trainer_conformance import MakeTrainer, TrainerConformance, save, settings, trajectories_of
from tests.engine.training.trainer_parts_conformance import LORA, WITH_KL, PartsConformance
from tests.engine.training.trainer_parts_conformance import make_layout as make_layout

pytestmark = pytest.mark.usefixtures("one_thread")


# test_ranks.py covers what the three stages shard differently, on two ranks: steps, checkpoints, versions, skipped
# updates. In one process, stage 3 differs most from the torch trainer.
@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak), 3])
def make_trainer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeTrainer]:
    """A test's trainers live at the same time."""
    monkeypatch.setattr(sharding, "PERSISTENT_NUMEL", 0)  # otherwise stage 3 would not shard so small a model
    trainers: list[DeepSpeedTrainer] = []

    def make(folder: Path, *, trainer: TrainerSpec | None = None, **given: Any) -> DeepSpeedTrainer:
        spec = (trainer or TrainerSpec()).model_copy(update={"backend": "deepspeed", "zero_stage": request.param})
        trainers.append(DeepSpeedTrainer(folder, settings(trainer=spec, **given), device="cpu"))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.close()


@pytest.mark.long_except(
    "test_step_returns_logprobs_by_its_first_weights",
    "test_one_step_equals_reference_adamw",
    "test_checkpoint_holds_the_prepared_state_and_resumes_exactly",
)
@pytest.mark.proof  # the first DeepSpeed of a process takes 15 s
class TestDeepSpeedTrainer(TrainerConformance):
    pass


@pytest.mark.long
class TestDeepSpeedTrainersParts(PartsConformance):
    pass


@pytest.mark.long
class TestDeepSpeedTrainersMiniBatches(MiniBatchConformance):
    pass


@pytest.mark.long
class TestDeepSpeedTrainersPartsAreTorchs(SameStepsConformance):
    pass


@pytest.mark.long
def test_bfloat16_moments_of_the_torch_trainer_are_loaded(
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


def test_frozen_base_stays_sharded_after_a_step(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage 3: the first layer's input needs no gradient, so no hook runs at its end in the backward pass."""
    monkeypatch.setattr(sharding, "PERSISTENT_NUMEL", 0)
    spec = LORA.model_copy(update={"backend": "deepspeed", "zero_stage": 3})
    trainer = DeepSpeedTrainer(make_llama(), settings(trainer=spec, algorithm=AlgorithmSpec(kl=WITH_KL)), device="cpu")
    try:
        for step in range(3):
            trainer.train_step(trajectories_of(step))
            assert {parameter.numel() for parameter in trainer._model.parameters()} == {0}
    finally:
        trainer.close()


@pytest.mark.long_except("1", "2")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_reduce_bucket_is_no_larger_than_the_trained_part(make_llama: MakeLlama, stage: int) -> None:
    """DeepSpeed's default is 2 GB for each part."""
    spec = LORA.model_copy(update={"backend": "deepspeed", "zero_stage": stage})
    trainer = DeepSpeedTrainer(make_llama(), settings(trainer=spec), device="cpu")
    try:
        assert trainer._adapter is not None
        trained = sum(whole_shape(parameter).numel() for parameter in trainer._adapter.parameters.values())
        assert trainer._parts[0]._engine.optimizer.reduce_bucket_size == trained < trainer.num_parameters
    finally:
        trainer.close()
