"""The default of `trainer.activations`: the engine chooses what the memory arithmetic assumes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.fit.known_models import known_shape
from engine.fit.planning import plan_trainer
from engine.fit.shape import ModelShape
from engine.models.loading import read_config
from engine.spec.job import JobSpec, TrainerSpec
from engine.training.settings import TrainerSettings
from engine.training.step.activations import choose_activations, shape_of
from tests.engine.conftest import MakeLlama
from tests.engine.products import in_pairs

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "tokens", "algorithm", "sharers"),
    in_pairs(["Qwen3-0.6B", "Qwen3-8B"], [512, 2_048, 8_192, 65_536], ["grpo", "ppo"], [1, 4]),
)
def test_trainer_chooses_what_the_memory_arithmetic_assumes(
    make_llama: MakeLlama, name: str, tokens: int, algorithm: str, sharers: int
) -> None:
    shape = known_shape(name)
    spec = JobSpec.model_validate(
        {
            "name": "t",
            "algorithm": {"name": algorithm},
            "trainer": {"micro_batch_tokens": tokens, "sequence_parallel": sharers},
            "resources": {"trainer_devices": sharers},
        }
    )
    plan = plan_trainer(spec, shape, on_gpu=False)
    config = replace(
        read_config(make_llama()),
        width=shape.width,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        mlp_width=shape.mlp_width,
        max_positions=shape.max_positions,
        qk_norm=True,
    )
    assert choose_activations(TrainerSettings.of(spec), config, CPU) == plan.activations


def test_small_models_keep_large_recompute_and_spec_overrides(make_llama: MakeLlama) -> None:
    config = read_config(make_llama())

    def held(layers: int, **trainer: object) -> str:
        spec = JobSpec(name="t", trainer=TrainerSpec.model_validate(trainer))
        return choose_activations(TrainerSettings.of(spec), replace(config, num_layers=layers), CPU)

    assert held(2) == "kept"
    assert held(10_000) == "recomputed"
    assert held(2, activations="offloaded") == "offloaded" and held(10_000, activations="kept") == "kept"


def test_a_models_shape_is_that_of_its_folder(make_llama: MakeLlama) -> None:

    folder: Path = make_llama(dtype="bfloat16")
    assert shape_of(read_config(folder)) == ModelShape.of_config(json.loads((folder / "config.json").read_text()))
