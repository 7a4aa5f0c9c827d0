"""Every promise of a trainer, kept by DeepSpeed's ZeRO 1, 2 and 3 in one process; and the torch trainer's steps."""

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


# Two ranks prove all that stages divide differently, of all three (test_ranks.py): steps, checkpoints, versions, what
# is skipped. In one process stage 3 is the one that differs from the torch trainer by most.
@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak), 3])
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


@pytest.mark.long_except(
    "test_a_step_tells_each_tokens_logprob_by_the_weights_that_it_began_with",
    "test_one_step_is_that_of_adamw_worked_out_apart",
    "test_what_is_written_is_what_was_prepared_and_resumes_exactly",
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


@pytest.mark.long_except("1", "2")
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
