"""The decoder computes what `transformers` computes, and reads and writes the same folders."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models.attention import PackedAttention
from engine.models.decoder import Decoder, token_logprobs
from engine.models.loading import (
    COMPANION_FILES,
    load_decoder,
    load_weights,
    model_tensors,
    resolve_model,
    save_weights,
)
from engine.models.packing import lay_out, pack
from engine.models.tokenizer import Tokenizer, read_eos_ids
from tests.engine.conftest import MakeLlama
from tests.engine.inference.rollout_engine_builders import Layout, make_model

pytestmark = pytest.mark.usefixtures("one_thread")

SEQUENCES = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16, 17], [4, 30, 31]]


def logits_of(model: Decoder, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Logits of each sequence, computed packed together."""
    packed = pack(sequences, lay_out([len(each) for each in sequences], max_tokens=1_000), "cpu")
    with torch.no_grad():
        all_logits = model.logits(model(packed.ids_T, packed.positions_T, PackedAttention(packed)))
    return [all_logits[list(packed.places[i])] for i in range(len(sequences))]


def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_packed_logits_are_those_of_transformers(make_llama: MakeLlama, tied: bool, kv_heads: int) -> None:
    folder = make_llama(tied=tied, kv_heads=kv_heads)
    theirs = reference(folder)
    for sequence, ours in zip(SEQUENCES, logits_of(load_decoder(folder, device="cpu"), SEQUENCES), strict=True):
        with torch.no_grad():
            expected = theirs(torch.tensor([sequence])).logits[0]
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-5)


def test_a_padded_row_changes_nothing_for_its_neighbours(make_llama: MakeLlama) -> None:
    model = load_decoder(make_llama(), device="cpu")
    alone = [logits_of(model, [each])[0] for each in SEQUENCES]
    for one, other in zip(alone, logits_of(model, SEQUENCES), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_weights_load_bit_for_bit_here_and_in_transformers(
    make_llama: MakeLlama, tmp_path: Path, tied: bool, dtype: str
) -> None:
    folder = make_llama(tied=tied, dtype=dtype)
    model = load_decoder(folder, device="cpu")
    shutil.copy(folder / "config.json", tmp_path)
    save_weights(model_tensors(model), tmp_path / "model.safetensors")
    stored, original = load_file(tmp_path / "model.safetensors"), load_file(folder / "model.safetensors")
    assert stored.keys() == original.keys()
    assert ("lm_head.weight" in stored) is not tied
    assert all(torch.equal(stored[name], original[name]) for name in original)
    theirs = reference(tmp_path).state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in stored.items())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", ["llama3", "yarn", "qwen2", "qwen3", "qwen3_moe"])
def test_other_layouts_match_transformers_and_save_bit_for_bit(tmp_path: Path, layout: Layout, tied: bool) -> None:
    theirs = make_model(tmp_path, layout=layout, tied=tied)
    model = load_decoder(tmp_path, device="cpu")
    long = [5 + i % 50 for i in range(200)]
    for sequence, ours in zip([*SEQUENCES, long], logits_of(model, [*SEQUENCES, long]), strict=True):
        torch.testing.assert_close(ours, theirs.logits(sequence), atol=2e-4, rtol=1e-4)
    original = load_file(tmp_path / "model.safetensors")
    save_weights(model_tensors(model), tmp_path / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == original.keys()
    assert all(torch.equal(stored[name], original[name]) for name in original)


def test_a_rollouts_fused_forward_is_the_trainers(make_llama: MakeLlama) -> None:
    model = load_decoder(make_llama(), device="cpu")
    trained = logits_of(model, SEQUENCES)
    with torch.inference_mode():
        rolled_out = logits_of(model, SEQUENCES)
    for one, other in zip(trained, rolled_out, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


def test_loads_weights_in_several_files(make_llama: MakeLlama, tmp_path: Path) -> None:
    folder = make_llama()
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shutil.copy(folder / "config.json", tmp_path)
    weight_map = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = model_tensors(load_decoder(resolve_model(str(tmp_path)), device="cpu"))
    assert all(torch.equal(loaded[name], tensors[name]) for name in names)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope setting factor must be a number above 0"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, "rope setting mscale must be empty"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope type"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, "rope type"),
        ({"dtype": "float8_e4m3fn"}, "dtype"),
    ],
)
def test_refuses_what_it_cannot_honour(
    make_llama: MakeLlama, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    config = json.loads((make_llama() / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=named):
        load_decoder(tmp_path, device="cpu")


def test_names_a_missing_tensor_and_one_of_another_shape(make_llama: MakeLlama, tmp_path: Path) -> None:
    folder = make_llama()
    model, tensors = load_decoder(folder, device="cpu"), load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k != "lm_head.weight"}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        load_weights(model, tmp_path)
    save_file(tensors | {"model.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        load_weights(model, tmp_path)


@pytest.mark.parametrize("source", ["", "gpt-17", "/nowhere/at/all"])
def test_error_of_unknown_source_lists_accepted_sources(source: str) -> None:
    with pytest.raises(ValueError, match=r"'demo', or a folder with config\.json and model\.safetensors"):
        resolve_model(source)


def test_log_probs_are_of_the_distribution_at_that_temperature() -> None:
    logits_NV, targets_N = torch.randn(6, 10), torch.arange(6)
    logprobs_N, entropy_N = token_logprobs(logits_NV, targets_N, 0.7)
    expected_NV = torch.softmax(logits_NV / 0.7, dim=-1)
    torch.testing.assert_close(logprobs_N, expected_NV[targets_N, targets_N].log())
    torch.testing.assert_close(entropy_N, -(expected_NV * expected_NV.log()).sum(-1))


def test_demo_tokenizer_round_trips_without_end_token() -> None:
    tokenizer = Tokenizer.from_folder(resolve_model("demo"))
    text = "3 + 8 + 5 ="
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, tokenizer.eos_id]) == text
    assert 0 <= max(ids) < tokenizer.vocab_size


def test_generation_config_takes_precedence_for_end_tokens(make_llama: MakeLlama, tmp_path: Path) -> None:
    for name in COMPANION_FILES:
        if (make_llama() / name).is_file():
            shutil.copy(make_llama() / name, tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 3]}')
    assert read_eos_ids(tmp_path) == (9, 3)
    (tmp_path / "generation_config.json").unlink()
    assert read_eos_ids(tmp_path) == (3,)
