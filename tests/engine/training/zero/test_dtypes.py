"""Weights are float32 in every rank's memory, whichever dtypes DeepSpeed believes the processor to support."""

from functools import partial
from pathlib import Path

import pytest
import torch

import engine.training.zero.division as division
from engine.spec.job import AlgorithmSpec, KlSpec, OptimizerSpec, TrainerSpec
from engine.training.factory import build_trainer
from engine.training.parts.exact_dtype import WrongDtype
from engine.training.settings import TrainerSettings
from engine.training.zero.guest import import_deepspeed
from tests.engine.conftest import MakeLlama
from tests.engine.products import in_pairs
from tests.engine.training.trainer_conformance import (
    SMOOTH_EPS,
    assert_same_steps,
    save,
    settings,
    trajectories_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def settings_for(stage: int | None) -> TrainerSettings:
    """Settings with policy, critic and reference: three decoders. None: the whole trainer's."""
    return settings(
        algorithm=AlgorithmSpec(name="ppo", kl=KlSpec(coefficient=0.1)),
        optimizer=OptimizerSpec(learning_rate=1e-2, warmup_steps=0, eps=SMOOTH_EPS),
        trainer=TrainerSpec() if stage is None else TrainerSpec(backend="deepspeed", zero_stage=stage),
    )


def let_deepspeed_believe(monkeypatch: pytest.MonkeyPatch, *, fp16: bool, bf16: bool) -> None:
    accelerator = import_deepspeed("cpu").accelerator.get_accelerator()
    monkeypatch.setattr(accelerator, "is_fp16_supported", lambda: fp16)
    monkeypatch.setattr(accelerator, "is_bf16_supported", lambda: bf16)


@pytest.mark.long_except("1-False-False", "2-True-False", "2-False-True")
@pytest.mark.parametrize(("stage", "fp16", "bf16"), in_pairs([1, 2, 3], [True, False], [True, False]))
def test_steps_equal_the_whole_trainers_on_any_processor(
    make_llama: MakeLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int, fp16: bool, bf16: bool
) -> None:
    let_deepspeed_believe(monkeypatch, fp16=fp16, bf16=bf16)
    monkeypatch.setattr(division, "PERSISTENT_NUMEL", 0)
    theirs = build_trainer(make_llama(), settings_for(None), device="cpu")
    ours = build_trainer(make_llama(), settings_for(stage), device="cpu")
    try:
        expected, metrics = ([each.train_step(trajectories_of(0)).metrics] for each in (theirs, ours))
        saved, expected_save = save(ours, tmp_path / "ours"), save(theirs, tmp_path / "theirs")
    finally:
        ours.close()
    assert_same_steps(metrics, saved, expected=expected, expected_checkpoint=expected_save)


def test_weights_that_deepspeed_cast_are_named(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """As version 0.19.8 does with a given dtype."""
    let_deepspeed_believe(monkeypatch, fp16=False, bf16=True)
    zero = import_deepspeed("cpu").zero
    monkeypatch.setattr(zero, "Init", partial(zero.Init, dtype=torch.float32))
    with pytest.raises(WrongDtype, match=r"must be float32: policy's embedding_VD is bfloat16, .* more"):
        build_trainer(make_llama(), settings_for(3), device="cpu")


@pytest.mark.long_except("2")
@pytest.mark.parametrize("stage", [2, 3])
def test_dtype_of_this_ranks_shard_is_checked_after_a_load(make_llama: MakeLlama, tmp_path: Path, stage: int) -> None:
    trainer = build_trainer(make_llama(), settings_for(stage), device="cpu")
    try:
        saved = save(trainer, tmp_path)
        trainer.load(saved)
        rounded = trainer._modules["reference"].final_norm_D
        part = getattr(rounded, "ds_tensor", rounded)  # in stage 3, this rank's shard
        part.data = part.data.bfloat16()
        with pytest.raises(WrongDtype, match=r"float32: reference's final_norm_D is bfloat16$"):
            trainer.load(saved)
    finally:
        trainer.close()
