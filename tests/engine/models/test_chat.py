"""Chat templates render as in transformers, without its clock."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.models.chat import ChatTemplate
from tests.engine.chat_rules import TEMPLATES, published

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "description": "Größe <b>", "parameters": {"type": "object"}}}
]
DIALOGUE: list[dict[str, Any]] = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\n<tool_call>\n{}\n</tool_call>"},
    {"role": "tool", "content": "4"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Thanks."},
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_published_template_is_rendered_as_transformers_does(tmp_path: Path, name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = published(name)
    (tmp_path / "chat_template.jinja").write_text(source)
    template = ChatTemplate.of_folder(tmp_path, {"enable_thinking": False, "bos_token": "<s>"})
    assert template is not None
    for messages, tools in ((DIALOGUE[:1], None), (DIALOGUE, None), (DIALOGUE, TOOLS)):
        given: dict[str, Any] = {"enable_thinking": False, "bos_token": "<s>", "add_generation_prompt": True}
        by_transformers: Any = render_jinja_template
        [expected], _ = by_transformers([messages], tools=tools, chat_template=source, **given)
        assert template.rendered(messages, tools or ()) == expected


def test_template_file_takes_precedence_over_config(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    messages = [{"role": "user", "content": "hello"}]
    first = ChatTemplate.of_folder(tmp_path, {})
    assert first is not None and first.rendered(messages) == "<s>hello"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    second = ChatTemplate.of_folder(tmp_path, {})
    assert second is not None and second.rendered(messages) == "hello!"


def test_tool_template_is_used_when_tools_are_given(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    template = ChatTemplate.of_folder(tmp_path, {})
    assert template is not None
    assert (template.rendered([]), template.rendered([], TOOLS)) == ("plain", "1 tools")


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.of_folder(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "the chat template cannot be read: "),
        ("{{ raise_exception('roles must alternate') }}", "the chat template rejects it: roles must alternate"),
        ("{{ messages[7].content }}", "the chat template rejects it: "),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "the chat template rejects it: "),
    ],
)
def test_template_error_is_raised_with_its_own_message(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(ValueError, match="^" + message):
        template = ChatTemplate.of_folder(tmp_path, {})
        assert template is not None
        template.rendered([{"role": "user", "content": "hello"}])


def test_template_has_no_clock(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ 'today' if strftime_now is defined else 'some day' }}")
    template = ChatTemplate.of_folder(tmp_path, {})
    assert template is not None and template.rendered([]) == "some day"
