"""A folder with a model's shape and random weights loads here and in transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.fit.known_models import KNOWN_CONFIGS
from engine.fit.shape import ModelShape
from engine.models.loading import load_decoder, read_config
from engine.models.make_random import make_random
from engine.models.tokenizer import Tokenizer

SMALL: dict[str, Any] = {
    **KNOWN_CONFIGS["Qwen3-0.6B"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 300,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    make_random(folder, SMALL)
    return folder


def test_decoder_and_transformers_read_the_same_weights(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = load_decoder(folder, device="cpu", dtype=torch.float32)
    assert ours.num_parameters == ModelShape.of_config(SMALL).num_weights == theirs.num_parameters()
    assert read_config(folder).dtype == torch.bfloat16
    assert torch.equal(theirs.model.embed_tokens.weight, ours.embedding_VD)


def test_every_token_of_the_vocabulary_has_a_word(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.vocab_size == SMALL["vocab_size"]
    assert tokenizer.decode([SMALL["vocab_size"] - 1])


def test_it_is_the_same_folder_every_time(folder: Path, tmp_path: Path) -> None:
    make_random(tmp_path, SMALL)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        file.name: file.read_bytes() for file in tmp_path.iterdir()
    }
