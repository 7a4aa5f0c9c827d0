"""Chat templates: render messages as the text that a model was trained on.

A template is untrusted code. It runs in jinja's sandbox and sees the messages, the tools, the job's options and the
special tokens of the model's folder. It has no clock, so that a prompt does not change from day to day.

Invariants:
- the same messages give the same text in every process;
- messages that a template rejects raise a `ValueError` with the template's own message.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]
Tool = Mapping[str, Any]

TEMPLATE_FILE: Final = "chat_template.jinja"
CONFIG_FILE: Final = "tokenizer_config.json"
WORDS_FILE: Final = "special_tokens_map.json"  # in older folders
_WITH_TOOLS: Final = "tool_use"  # the name of the template for tools, where a folder has several
_WORDS: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class ChatTemplate:
    def __init__(self, sources: Mapping[str, str], *, given: Mapping[str, Any]) -> None:
        """`sources`: templates by name; a single one is named "default". `given`: variables for every rendering."""
        try:
            self._templates = {name: _make_environment().from_string(source) for name, source in sources.items()}
        except TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from error
        self._given = dict(given)

    @classmethod
    def of_folder(cls, folder: Path, options: Mapping[str, Any]) -> Self | None:
        """None if the folder has no template. Raises `ValueError`."""
        config = _read_json(folder / CONFIG_FILE)
        sources = _read_sources(folder, config)
        known = {**_read_json(folder / WORDS_FILE), **config}
        words = {name: _unwrap_word(known[name]) for name in _WORDS if known.get(name)}
        return cls(sources, given={**words, **options}) if sources else None

    def rendered(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The messages as text, ending with the opening of the model's answer."""
        name = _WITH_TOOLS if tools and _WITH_TOOLS in self._templates else "default"
        template = self._templates.get(name) or next(iter(self._templates.values()))
        plain = [dict(message) for message in messages]
        try:
            return str(
                template.render(
                    **self._given,
                    messages=plain,
                    tools=[dict(tool) for tool in tools] or None,
                    documents=None,
                    add_generation_prompt=True,
                )
            )
        except Exception as error:
            raise ValueError(f"the chat template rejects it: {str(error) or type(error).__name__}") from error


def _read_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """chat_template.jinja takes precedence over tokenizer_config.json, as in `transformers`."""
    file = folder / TEMPLATE_FILE
    if file.is_file():
        return {"default": file.read_text(encoding="utf-8")}
    match config.get("chat_template"):
        case None:
            return {}
        case str(source):
            return {"default": source}
        case [*several] if all(map(_is_named_template, several)):
            return {each["name"]: each["template"] for each in several}
    raise ValueError(f'{CONFIG_FILE}: chat_template must be a text, or a list of objects with "name" and "template"')


def _is_named_template(each: object) -> bool:
    return isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("template"), str)


def _unwrap_word(value: str | Mapping[str, Any]) -> str:
    return value if isinstance(value, str) else str(value["content"])


def _read_json(file: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{file.name}: not JSON: {error}") from error
    return settings


def _make_environment() -> ImmutableSandboxedEnvironment:
    """Set up as in `transformers`, which templates are written for, but without `strftime_now`: templates test whether
    it is defined."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    env.filters["tojson"] = _dump_json
    env.globals["raise_exception"] = _raise_template_error
    return env


def _dump_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces jinja's filter, which escapes characters for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)


class _Generation(Extension):
    """Ignores `{% generation %}`, which marks the model's text in some templates; we know it from the tokens."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))
