"""A shape's weights are those that the model has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.shape import ModelShape
from engine.models.decoder import Decoder
from engine.models.loading import DEMO_FOLDER, read_config
from engine.training.parts.lora import Adapter
from engine.training.step.activations import shape_of
from tests.engine.fit.shapes_of_models import decoder_config

ONE_OF_TWO = replace(known_shape("Qwen3-30B-A3B"), num_layers=2, num_mixtures=1)

# As their makers count them: 0.6, 1.7, 8.2, 32.8 and 30.5 billion.
PUBLIC = {
    "Qwen3-0.6B": 0.6,
    "Qwen3-1.7B": 1.7,
    "Qwen3-4B": 4.0,
    "Qwen3-8B": 8.2,
    "Qwen3-32B": 32.8,
    "Qwen3-30B-A3B": 30.5,
}


@pytest.mark.parametrize("name", KNOWN_CONFIGS)
def test_counts_the_weights_that_the_decoder_has(name: str) -> None:
    shape = known_shape(name)
    for each in (shape, replace(shape, qk_norm=False, qkv_bias=True), replace(shape, tied=not shape.tied)):
        with torch.device("meta"):
            decoder = Decoder(decoder_config(each), torch.float32)
        assert each.num_weights == decoder.num_parameters
        num_idle = 0 if each.tied else each.vocab_size * each.width  # an embedding's row is multiplied with nothing
        assert each.num_active_weights == decoder.num_active_parameters - num_idle
        assert shape_of(decoder.config) == each


def test_counts_the_weights_that_transformers_mixture_has() -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    raw = {**KNOWN_CONFIGS["Qwen3-30B-A3B"], "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**raw))
    shape = ModelShape.of_config(raw)
    assert (shape.num_dense, shape.num_mixtures) == (4, 2)
    assert shape.num_weights == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", KNOWN_CONFIGS)
def test_a_known_shape_has_as_many_weights_as_its_name_says(name: str) -> None:
    assert round(known_shape(name).num_weights / 1e9, 1) == PUBLIC[name]


def test_a_token_of_a_mixture_meets_a_tenth_of_its_weights() -> None:
    shape = known_shape("Qwen3-30B-A3B")
    assert 9 < shape.num_weights / shape.num_active_weights < 11


@pytest.mark.parametrize("shape", [replace(known_shape("Qwen3-0.6B"), num_layers=2), ONE_OF_TWO], ids=["dense", "both"])
def test_counts_the_weights_of_an_adapter(shape: ModelShape) -> None:
    with torch.device("meta"):
        decoder = Decoder(decoder_config(shape), torch.float32)
        adapter = Adapter(decoder, rank=8, alpha=16.0, base=Path("base"))
    assert shape.adapter_weights(8) == sum(each.numel() for each in adapter.parameters.values())


def test_reads_a_folder_as_the_decoder_does() -> None:
    import json

    shape = ModelShape.of_config(json.loads((DEMO_FOLDER / "config.json").read_text()))
    assert replace(decoder_config(shape), rope_theta=0.0) == replace(read_config(DEMO_FOLDER), rope_theta=0.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": 0}, "hidden_size must be a positive number, got 0"),
        ({"vocab_size": None}, "vocab_size must be a positive number, got None"),
        ({"dtype": "int4"}, "dtype must be one of float32, bfloat16, float16, got 'int4'"),
        ({"shared_expert_intermediate_size": 512}, "shared_expert_intermediate_size must be 0"),
    ],
)
def test_refuses_what_it_cannot_count(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ModelShape.of_config({**KNOWN_CONFIGS["Qwen3-30B-A3B"], **change})
