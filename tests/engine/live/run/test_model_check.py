"""A process of its own checks a job's model before any device is held."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.live.run.model_check import check_model
from engine.live.run.model_check_child import refuse_model
from engine.spec.job import JobSpec
from tests.engine.chat_rules import save_qwen3
from tests.engine.models.families.test_agreement import whole


def spec(folder: Path, **parts: dict[str, Any]) -> JobSpec:
    model = {"source": str(folder), **parts.pop("model", {})}
    return JobSpec.model_validate({"name": "x", "model": model, **parts})


VLLM = {"engine": "vllm"}


@pytest.mark.parametrize(
    ("variant", "parts", "reason"),
    [
        ("olmo2", {}, r"rollout\.engine must be vllm for this model, got torch: .*model_type"),
        ("llama-biases", {}, r"rollout\.engine must be vllm for this model, got torch: .*attention_bias"),
        (
            "olmo2",
            {"rollout": VLLM, "trainer": {"backend": "deepspeed"}},
            r"trainer\.backend must be torch for this model, got deepspeed",
        ),
        (
            "olmo2",
            {"rollout": VLLM, "trainer": {"lora_rank": 4}},
            r"trainer\.lora_rank must be 0 for this model, got 4",
        ),
    ],
)
def test_settings_only_the_decoder_supports_are_refused(
    tmp_path: Path, variant: str, parts: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        refuse_model(spec(whole(tmp_path, variant), **parts))


@pytest.mark.parametrize(
    ("variant", "parts"),
    [
        ("olmo2", {"rollout": VLLM}),
        ("qwen3", {"trainer": {"lora_rank": 4}}),
        ("mistral-windows", {"trainer": {"lora_rank": 4}}),
        ("qwen3-windows", {"trainer": {"backend": "deepspeed"}}),
    ],
)
def test_supported_settings_are_accepted(tmp_path: Path, variant: str, parts: dict[str, Any]) -> None:
    refuse_model(spec(whole(tmp_path, variant), **parts))


def never() -> None:
    pass


@pytest.mark.long
def test_check_in_a_process_reports_the_reason(tmp_path: Path) -> None:
    folder = whole(tmp_path, "glm4")
    check_model(spec(folder, rollout=VLLM), interrupted=never)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": "gone.safetensors"}}')
    with pytest.raises(ValueError, match=r"^model\.safetensors\.index\.json names gone\.safetensors, which is not in"):
        check_model(spec(folder, rollout=VLLM), interrupted=never)


def test_built_in_model_is_not_checked(tmp_path: Path) -> None:
    check_model(spec(Path("demo")), interrupted=never)


def test_device_counts_that_do_not_divide_heads_are_refused(tmp_path: Path) -> None:
    three: dict[str, Any] = {"rollout": VLLM, "resources": {"devices_per_replica": 3}}
    reason = r"resources\.devices_per_replica must divide the model's 4 heads; got 3, accepted: 1, 2, 4"
    with pytest.raises(ValueError, match=reason):
        check_model(JobSpec.model_validate({"name": "x", **three}), interrupted=lambda: None)
    with pytest.raises(ValueError, match=reason):
        refuse_model(spec(whole(tmp_path, "llama"), **three))


HOSTILE: dict[str, dict[str, str]] = {
    "bos_list": {"tokenizer_config.json": '{"bos_token": ["x"], "chat_template": "x"}'},
    "eos_list": {"tokenizer_config.json": '{"eos_token": ["x"]}'},
    "nested": {"tokenizer_config.json": '{"a":' * 100_000 + "0" + "}" * 100_000},
    "config_nested": {"config.json": "[" * 100_000},
    "config_list": {"config.json": "[]"},
    "vocabulary_text": {"config.json": '{"model_type": "qwen3", "vocab_size": "many"}'},
    "eos_object": {"generation_config.json": '{"eos_token_id": {"a": 1}}'},
    "words_nested": {"tokenizer.json": "[" * 100_000},
    "words_empty": {"tokenizer.json": '{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}}'},
    "template_allocates": {"chat_template.jinja": "{{ 'a' * 100000000000 }}"},
    "index_nested": {"model.safetensors.index.json": "[" * 100_000},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_as_the_customers(name: str, tmp_path: Path) -> None:
    """A `ValueError` is a `config` failure; any other error would be one of unknown cause."""
    folder = whole(tmp_path, "qwen3")
    for file, text in HOSTILE[name].items():
        (folder / file).write_text(text)
    with pytest.raises(ValueError):
        check_model(spec(folder), interrupted=never)


@pytest.mark.long
def test_tokenizer_that_panics_is_refused_as_the_customers(tmp_path: Path) -> None:
    folder = save_qwen3(tmp_path)
    words = json.loads((folder / "tokenizer.json").read_text())
    words["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(e+e+)+2"},
        "behavior": "Isolated",
        "invert": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(words))
    (folder / "chat_template.jinja").write_text("e" * 40)
    with pytest.raises(ValueError, match="PanicException"):
        check_model(spec(folder), interrupted=never)
