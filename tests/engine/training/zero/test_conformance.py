"""DeepSpeed's ZeRO 1, 2 and 3 in one process: the conformance suites, and what it keeps in memory."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

import engine.training.zero.division as division
from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
from engine.training.parts.layout import whole_shape
from engine.training.trainer import Trainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks_conformance import RanksConformance
from tests.engine.training.sharding_conformance import ShardingConformance
from tests.engine.training.trainer_conformance import MakeTrainer, save, trainer_of, trajectories_of
from tests.engine.training.trainer_parts_conformance import LORA, WITH_KL

pytestmark = pytest.mark.usefixtures("one_thread")


# test_ranks.py covers what the three stages shard differently, on two ranks: steps, checkpoints, versions, skipped
# updates. In one process, stage 3 differs most from the whole trainer.
@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak), 3])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeTrainer:
    monkeypatch.setattr(division, "PERSISTENT_NUMEL", 0)  # otherwise stage 3 would not shard so small a model

    def make(folder: Path, *, trainer: TrainerSpec | None = None, **given: Any) -> Trainer:
        spec = trainer or TrainerSpec()
        stage = spec.zero_stage if "zero_stage" in spec.model_fields_set else request.param
        return trainer_of(
            folder, trainer=spec.model_copy(update={"backend": "deepspeed", "zero_stage": stage}), **given
        )

    return make


@pytest.mark.long_except(
    "test_step_returns_logprobs_by_its_first_weights",
    "test_one_step_equals_reference_adamw",
    "test_checkpoint_holds_the_prepared_state_and_resumes_exactly",
)
@pytest.mark.proof  # the first DeepSpeed of a process takes 15 s
class TestZero(ShardingConformance):
    pass


@pytest.mark.long_except(
    "test_trainers_in_one_process_are_independent_and_clean_up",
    "test_process_group_of_other_code_is_left_alone",
    "test_unreadable_model_leaves_no_process_group_behind",
)
class TestZeroRanks(RanksConformance):
    IN_ONE_PROCESS: ClassVar = (TrainerSpec(zero_stage=2), TrainerSpec(zero_stage=1), TrainerSpec(zero_stage=3))


@pytest.mark.long
def test_bfloat16_moments_of_the_whole_trainer_are_loaded(
    make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
) -> None:
    rounded = OptimizerSpec(learning_rate=1e-2, warmup_steps=0, moments="bfloat16")
    theirs = trainer_of(make_llama(), optimizer=rounded)
    theirs.train_step(trajectories_of(0))
    ours = make_trainer(make_llama())
    ours.load(save(theirs, tmp_path / "theirs"))
    taken = load_file(save(ours, tmp_path / "ours") / "optimizer.safetensors")
    for name, tensor in load_file(tmp_path / "theirs" / "optimizer.safetensors").items():
        assert torch.equal(taken[name], tensor.to(taken[name].dtype))


def test_frozen_base_stays_sharded_after_a_step(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage 3: the first layer's input needs no gradient, so no hook runs at its end in the backward pass."""
    monkeypatch.setattr(division, "PERSISTENT_NUMEL", 0)
    spec = LORA.model_copy(update={"backend": "deepspeed", "zero_stage": 3})
    trainer = trainer_of(make_llama(), trainer=spec, algorithm=AlgorithmSpec(kl=WITH_KL))
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
    trainer = trainer_of(make_llama(), trainer=spec)
    try:
        assert trainer._adapter is not None
        trained = sum(whole_shape(parameter).numel() for parameter in trainer._adapter.parameters.values())
        part: Any = trainer._sharding.parts[0]
        assert part._engine.optimizer.reduce_bucket_size == trained < trainer.num_parameters
    finally:
        trainer.close()
