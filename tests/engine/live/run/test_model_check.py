"""What a job asks of its model is checked before any device is held, by a process of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.live.run.model_check import check_model, refuse_model
from engine.spec.job import JobSpec
from tests.engine.models.families.test_agreement import whole


def spec(folder: Path, **parts: dict[str, Any]) -> JobSpec:
    model = {"source": str(folder), **parts.pop("model", {})}
    return JobSpec.model_validate({"name": "x", "model": model, **parts})


VLLM = {"engine": "vllm"}


@pytest.mark.parametrize(
    ("variant", "parts", "told"),
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
def test_what_only_the_decoder_does_is_refused_of_others(
    tmp_path: Path, variant: str, parts: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        refuse_model(spec(whole(tmp_path, variant), **parts))


@pytest.mark.parametrize(("variant", "parts"), [("olmo2", {"rollout": VLLM}), ("qwen3", {"trainer": {"lora_rank": 4}})])
def test_what_is_done_is_let_through(tmp_path: Path, variant: str, parts: dict[str, Any]) -> None:
    refuse_model(spec(whole(tmp_path, variant), **parts))


@pytest.mark.parametrize(
    ("template", "parts", "told"),
    [
        ("{% for %}", {}, "the chat template cannot be read"),
        ("{{ messages[0].name.first }}", {}, "the chat template does not take it"),
        (
            "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}",
            {"environment": {"name": "tools"}},
            "the chat template does not take it: no tools",
        ),
        (None, {"model": {"chat": "template"}}, r"^model\.chat: .* has no chat template"),
        (None, {"model": {"chat_options": {"enable_thinking": False}}}, r"^model\.chat: .* has no chat template"),
        (
            None,
            {"environment": {"name": "tools", "params": {"calls": "tool_call"}}},
            "needs a chat template that tells",
        ),
        (
            "deaf",
            {"environment": {"name": "tools", "params": {"calls": "tool_call"}}},
            "needs a chat template that tells",
        ),
    ],
)
def test_a_chat_template_that_does_not_take_the_jobs_conversations_is_refused(
    tmp_path: Path, template: str | None, parts: dict[str, Any], told: str
) -> None:
    folder = whole(tmp_path, "qwen3")
    refuse_model(spec(folder))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError, match=told):
        refuse_model(spec(folder, **parts))


def test_every_row_that_the_template_does_not_take_is_named_and_a_plain_model_reads_no_messages(tmp_path: Path) -> None:
    folder, data = whole(tmp_path / "model", "qwen3"), tmp_path / "data"
    data.mkdir()
    user, system = {"role": "user", "content": "hello"}, {"role": "system", "content": "Be short."}
    rows = [{"prompt": [system, user] if at in (3, 7) else [{**user, "content": f"{at}?"}]} for at in range(1, 41)]
    (data / "chats.jsonl").write_text("".join(json.dumps({**row, "answer": "x"}) + "\n" for row in rows))
    job = spec(folder, environment={"name": "jsonl", "params": {"data": "chats.jsonl"}})
    with pytest.raises(ValueError, match=r"chats\.jsonl:1: a prompt of messages or with tools needs a model with"):
        refuse_model(job, data_folder=data)
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}ask"
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError) as caught:
        check_model(job, data_folder=data, interrupted=never)
    wrong = "the chat template does not take it: no system"
    assert str(caught.value).splitlines() == [f"chats.jsonl:3: {wrong}", f"chats.jsonl:7: {wrong}"]
    (folder / "chat_template.jinja").write_text("ask")
    refuse_model(job, data_folder=data)


def test_bad_rows_are_told_of_a_built_in_model_too(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "3 + 8 ="}\n')
    job = spec(Path("demo"), environment={"name": "jsonl", "params": {"data": "bad.jsonl"}})
    with pytest.raises(ValueError, match=r"^bad\.jsonl:1: answer: a text"):
        check_model(job, data_folder=tmp_path, interrupted=never)


def test_a_template_that_the_job_does_not_want_is_not_asked(tmp_path: Path) -> None:
    folder = whole(tmp_path, "qwen3")
    (folder / "chat_template.jinja").write_text("{% for %}")
    refuse_model(spec(folder, model={"chat": "plain"}))


def test_a_built_in_model_has_no_template() -> None:
    for asked in ({"chat": "template"}, {"chat_options": {"enable_thinking": False}}):
        with pytest.raises(ValueError, match=r"^model\.chat: demo has no chat template"):
            check_model(JobSpec.model_validate({"name": "x", "model": asked}), interrupted=never)
    tools = {"name": "tools", "params": {"calls": "tool_call"}}
    with pytest.raises(ValueError, match="calls: tool_call needs a chat template"):
        check_model(JobSpec.model_validate({"name": "x", "environment": tools}), interrupted=never)


def never() -> None:
    pass


def test_a_process_of_its_own_tells_why(tmp_path: Path) -> None:
    folder = whole(tmp_path, "glm4")
    check_model(spec(folder, rollout=VLLM), interrupted=never)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": "gone.safetensors"}}')
    with pytest.raises(ValueError, match=r"^model\.safetensors\.index\.json: names gone\.safetensors, which is not in"):
        check_model(spec(folder, rollout=VLLM), interrupted=never)


def test_a_built_in_model_is_not_asked_about(tmp_path: Path) -> None:
    check_model(spec(Path("demo")), interrupted=never)
