"""A folder whose configuration, tokenizer and weights disagree is refused with an error that names the values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from engine.models.families import agreement
from engine.models.families.trained_model import ModelConfig
from engine.models.loading import DEMO_FOLDER
from engine.models.tokenizer import Tokenizer as ModelTokenizer
from tests.engine.models.families.tiny import VARIANTS, save_tiny

Spoil = Callable[[Path], None]


def check_folder(folder: Path) -> ModelConfig:
    return agreement.check_folder(folder, words_of=lambda each: ModelTokenizer.from_folder(each).words())


def save_tokenizer(folder: Path, *, words: int = 38) -> None:
    """Saves a tokenizer of the first ids of a vocabulary of 40: published models leave some rows unused too."""
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(words)}, unk_token="w1"))
    tokenizer.add_special_tokens([AddedToken("w3")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "w3"}}))


def whole(folder: Path, variant: str) -> Path:
    save_tiny(folder, variant)
    save_tokenizer(folder)
    return folder


def settings(**changed: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Spoil:
    def spoil(folder: Path) -> None:
        stored = load_file(folder / "model.safetensors")
        change(stored)
        save_file(stored, folder / "model.safetensors", {"format": "pt"})

    return spoil


def index(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    named = dict.fromkeys(stored, "model.safetensors") | {"model.norm.weight": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def other_end(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "w7"}))


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_transformers_saved_agrees(tmp_path: Path, variant: str) -> None:
    config = check_folder(whole(tmp_path, variant))
    assert config.vocab_size == 40


def test_the_demo_model_agrees() -> None:
    check_folder(DEMO_FOLDER)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (settings(model_type="gemma3"), r"model_type must be one of glm4, llama.*got 'gemma3'"),
        (settings(num_hidden_layers=3), r"lack tensors that config\.json requires: model\.layers\.2\."),
        (settings(num_hidden_layers=1), r"have tensors that config\.json does not use: model\.layers\.1"),
        (
            settings(intermediate_size=64),
            r"gate_up_proj\.weight has shape \(96, 32\), config\.json requires \(128, 32\)",
        ),
        (settings(vocab_size=37), r"ids must be below config\.json's vocab_size, 37, got 37"),
        (settings(eos_token_id=39), r"eos_token_id must be the id of a token of tokenizer\.json, got 39"),
        (settings(resid_pdrop=0.1), r"resid_pdrop must be 0 .* got 0\.1"),
        (settings(attention_dropout=0.1), r"attention_dropout must be 0 .* got 0\.1"),
        (settings(logit_scale=8.0), r"logit_scale is no setting of phi3 models, got 8\.0"),
        (settings(attention_bias=True), r"attention_bias is no setting of phi3 models, got True"),
        (settings(quantization_config={"bits": 4}), r"quantization_config is no setting of phi3 models"),
        (
            settings(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            r"rope_parameters.*got dynamic",
        ),
        (settings(dtype="float8_e4m3fn"), r"dtype must be one of float32"),
        (tensors(lambda each: each.update(scale=torch.ones(1))), r"does not use: scale"),
        (
            tensors(lambda each: each.update({"model.norm.weight": torch.ones(32).to(torch.float8_e4m3fn)})),
            r"model\.norm\.weight must be one of F32, BF16, F16, got F8_E4M3",
        ),
        (index, r"names model-00002-of-00002\.safetensors, which is not in"),
        (cut, r"model\.safetensors: not a complete safetensors file"),
        (other_end, r"eos_token must be one of the end tokens of .* 3; got 'w7', which is 7"),
        (no_tokenizer, r"a model needs a tokenizer\.json"),
    ],
)
def test_disagreement_is_refused(tmp_path: Path, spoil: Spoil, message: str) -> None:
    folder = whole(tmp_path, "phi3")
    check_folder(folder)
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        check_folder(folder)


def test_partial_rotary_factor_is_refused_for_mistral(tmp_path: Path) -> None:
    folder = whole(tmp_path, "mistral")
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    settings(rope_parameters=rope)(folder)
    with pytest.raises(ValueError, match=r"partial_rotary_factor must be 1 for mistral models, got 0\.5"):
        check_folder(folder)
