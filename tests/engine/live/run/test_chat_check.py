"""A job's prompts are checked before any device is held, within limits of time and memory."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.live.run.chat_check import bounded
from engine.live.run.model_check import check_model
from engine.live.run.model_check_child import refuse_model
from engine.spec.job import JobSpec
from tests.engine.chat_rules import save_qwen3
from tests.engine.live.run.test_model_check import never, spec
from tests.engine.models.families.test_agreement import whole

ASKED = "What is 6 times 7? "
CUSTOM_CODE = "def prompt(split, ordinal):\n    return ''\ndef respond(prompt, turns):\n    return {'reward': 1}\n"


def job_of(folder: Path, data: Path, rows: list[dict[str, Any]], **environment: Any) -> dict[str, Any]:
    data.mkdir(exist_ok=True)
    (data / "rows.jsonl").write_text("".join(json.dumps({**row, "answer": "x"}) + "\n" for row in rows))
    params = {"data": "rows.jsonl", **environment.pop("params", {})}
    return {"environment": {"name": "jsonl", **environment, "params": params}}


@pytest.mark.parametrize(
    ("template", "parts", "reason"),
    [
        ("{% for %}", {}, "the chat template cannot be read"),
        ("{{ messages[0].name.first }}", {}, "the chat template rejects it"),
        (
            "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}",
            {"environment": {"name": "tools"}},
            "the chat template rejects it: no tools",
        ),
        (None, {"model": {"chat": "template"}}, r"^model\.chat: .* has no chat template"),
        (None, {"model": {"chat_options": {"enable_thinking": False}}}, r"^model\.chat: .* has no chat template"),
        (
            None,
            {"environment": {"name": "tools", "params": {"calls": "tool_call"}}},
            "needs a chat template that shows tools",
        ),
        (
            "no tools here",
            {"environment": {"name": "tools", "params": {"calls": "tool_call"}}},
            "needs a chat template that shows tools",
        ),
    ],
)
def test_template_that_rejects_the_jobs_conversations_is_refused(
    tmp_path: Path, template: str | None, parts: dict[str, Any], reason: str
) -> None:
    folder = whole(tmp_path, "qwen3")
    refuse_model(spec(folder))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError, match=reason):
        refuse_model(spec(folder, **parts))


@pytest.mark.long
def test_rows_rejected_by_template_or_plain_model_are_named(tmp_path: Path) -> None:
    folder, data = whole(tmp_path / "model", "qwen3"), tmp_path / "data"
    data.mkdir()
    user, system = {"role": "user", "content": "hello"}, {"role": "system", "content": "Be short."}
    rows = [{"prompt": [system, user] if at in (3, 7) else [{**user, "content": f"{at}?"}]} for at in range(1, 41)]
    (data / "chats.jsonl").write_text("".join(json.dumps({**row, "answer": "x"}) + "\n" for row in rows))
    job = spec(folder, environment={"name": "jsonl", "params": {"data": "chats.jsonl"}})
    with pytest.raises(ValueError, match=r"chats\.jsonl:1: a prompt with messages or tools needs a model with"):
        refuse_model(job, data_folder=data)
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}ask"
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError) as caught:
        check_model(job, data_folder=data, interrupted=never)
    wrong = "the chat template rejects it: no system"
    assert str(caught.value).splitlines() == [f"chats.jsonl:3: {wrong}", f"chats.jsonl:7: {wrong}"]
    (folder / "chat_template.jinja").write_text("ask")
    refuse_model(job, data_folder=data)


@pytest.mark.long
def test_bad_rows_are_refused_for_a_built_in_model_too(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "3 + 8 ="}\n')
    job = spec(Path("demo"), environment={"name": "jsonl", "params": {"data": "bad.jsonl"}})
    with pytest.raises(ValueError, match=r"^bad\.jsonl:1: answer: a text"):
        check_model(job, data_folder=tmp_path, interrupted=never)


@pytest.mark.parametrize(
    ("template", "options", "environment", "turns"),
    [
        ("qwen3", {"enable_thinking": False}, {"name": "tools"}, 6),
        ("qwen3", {"enable_thinking": False}, {"name": "tool_sums", "params": {"turns": 12}}, 12),
        ("qwen3", {}, {"name": "custom", "code": CUSTOM_CODE}, 8),
        ("qwen3", {}, {"name": "tools"}, None),
        ("qwen3", {"enable_thinking": False}, {"name": "running_sums"}, None),
        ("qwen2_5", {}, {"name": "custom", "code": CUSTOM_CODE}, None),
    ],
)
def test_rewritten_history_is_measured(
    tmp_path: Path, template: str, options: dict[str, Any], environment: dict[str, Any], turns: int | None
) -> None:
    folder = save_qwen3(tmp_path, template=template)
    model = {"chat_options": options}
    warnings = refuse_model(spec(folder, environment=environment, model=model))
    assert refuse_model(spec(folder, environment=environment, model={**model, "history": "as_generated"})) == ()
    if turns is None:
        assert warnings == ()
        return
    (warning,) = warnings
    assert f"a conversation of {turns} turns" in warning and "Set model.history to as_generated" in warning
    factor = float(re.findall(r"costs ([\d.]+) times", warning)[0])
    assert 1.5 <= factor <= turns


def test_template_without_earlier_answers_is_accepted(tmp_path: Path) -> None:
    folder = save_qwen3(tmp_path, template=None)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }} {{ messages | length }}")
    job = {"environment": {"name": "custom", "code": CUSTOM_CODE}}
    assert refuse_model(spec(folder, **job)) == ()
    with pytest.raises(ValueError, match=r"leave model\.history at template"):
        refuse_model(spec(folder, **job, model={"history": "as_generated"}))


@pytest.mark.long
def test_warning_of_rewritten_history_counts_the_question(tmp_path: Path) -> None:
    """A long question is repeated in every segment, so the factor is close to the number of turns."""
    folder, data = save_qwen3(tmp_path / "model"), tmp_path / "data"
    long = job_of(folder, data, [{"prompt": f"{at} {ASKED * 100}"} for at in range(40)], name="tools")
    model = {"model": {"chat_options": {"enable_thinking": False}}}
    (warning,) = check_model(spec(folder, **long, **model), data_folder=data, interrupted=never)
    assert float(re.findall(r"costs ([\d.]+) times", warning)[0]) > 4.5


def test_unused_template_is_not_checked(tmp_path: Path) -> None:
    folder = whole(tmp_path, "qwen3")
    (folder / "chat_template.jinja").write_text("{% for %}")
    refuse_model(spec(folder, model={"chat": "plain"}))


def test_built_in_model_refuses_template_settings() -> None:
    for model in ({"chat": "template"}, {"chat_options": {"enable_thinking": False}}):
        with pytest.raises(ValueError, match=r"^model\.chat: demo has no chat template"):
            check_model(JobSpec.model_validate({"name": "x", "model": model}), interrupted=never)
    tools = {"name": "tools", "params": {"calls": "tool_call"}}
    with pytest.raises(ValueError, match="calls: tool_call needs a chat template"):
        check_model(JobSpec.model_validate({"name": "x", "environment": tools}), interrupted=never)


def test_rows_too_long_for_the_model_are_named_with_tokens(tmp_path: Path) -> None:
    folder, data = save_qwen3(tmp_path / "model"), tmp_path / "data"
    num = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    rows = [{"prompt": f"{at} {ASKED * (num if at in (3, 7) else 1)}"} for at in range(1, 41)]
    with pytest.raises(ValueError) as caught:
        refuse_model(spec(folder, **job_of(folder, data, rows)), data_folder=data)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["rows.jsonl:3", "rows.jsonl:7"]
    assert all(f"from 1 to {num - 1} tokens, got " in line for line in lines)
    small = {"rollout": {"kv_tokens": 256, "max_new_tokens": 32}}
    rows[2] = rows[6] = rows[0]
    refuse_model(spec(folder, **job_of(folder, data, rows), **small), data_folder=data)
    rows[2] = {"prompt": ASKED * 20}
    with pytest.raises(ValueError, match=r"^rows\.jsonl:3: .* must fit the KV cache"):
        refuse_model(spec(folder, **job_of(folder, data, rows), **small), data_folder=data)


def test_template_check_includes_the_tool_message(tmp_path: Path) -> None:
    folder, data = whole(tmp_path / "model", "qwen3"), tmp_path / "data"
    (folder / "chat_template.jinja").write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}ask"
    )
    rows = [{"prompt": [{"role": "user", "content": f"{at}?"}]} for at in range(40)]
    refuse_model(spec(folder, **job_of(folder, data, rows)), data_folder=data)
    with pytest.raises(ValueError, match=r"^rows\.jsonl:1: the chat template rejects it: no system"):
        refuse_model(spec(folder, **job_of(folder, data, rows, name="tools")), data_folder=data)


@pytest.mark.long
def test_block_beyond_the_memory_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs more than 2147483648 bytes"), bounded():
        bytearray(3 << 30)
    assert len(bytearray(3 << 30)) == 3 << 30


@pytest.mark.long
def test_endless_template_is_refused_for_its_memory(tmp_path: Path) -> None:
    folder = whole(tmp_path, "qwen3")
    (folder / "chat_template.jinja").write_text("{{ 'x' * 10 ** 11 }}")
    with pytest.raises(ValueError, match="the chat template rejects it: MemoryError"):
        check_model(spec(folder), interrupted=never)
