"""Chat templates: as transformers renders them, and no further."""

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


def test_the_folders_own_words_are_given_and_its_file_has_the_last_word(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    told = [{"role": "user", "content": "hello"}]
    first = ChatTemplate.of_folder(tmp_path, {})
    assert first is not None and first.rendered(told) == "<s>hello"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    second = ChatTemplate.of_folder(tmp_path, {})
    assert second is not None and second.rendered(told) == "hello!"


def test_of_several_templates_the_one_for_tools_is_taken_where_there_are_tools(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    template = ChatTemplate.of_folder(tmp_path, {})
    assert template is not None
    assert (template.rendered([]), template.rendered([], TOOLS)) == ("plain", "1 tools")


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.of_folder(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{% if %}", "the chat template cannot be read: "),
        ("{{ raise_exception('roles must alternate') }}", "the chat template does not take it: roles must alternate"),
        ("{{ messages[7].content }}", "the chat template does not take it: "),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "the chat template does not take it: "),
    ],
)
def test_what_a_template_does_not_take_is_told_in_its_own_words(tmp_path: Path, source: str, told: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(ValueError, match="^" + told):
        template = ChatTemplate.of_folder(tmp_path, {})
        assert template is not None
        template.rendered([{"role": "user", "content": "hello"}])


def test_there_is_no_clock_so_that_a_prompt_is_the_same_on_every_day(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ 'today' if strftime_now is defined else 'some day' }}")
    template = ChatTemplate.of_folder(tmp_path, {})
    assert template is not None and template.rendered([]) == "some day"
