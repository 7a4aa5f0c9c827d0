"""A folder's chat template: messages as the text that its model was taught to read.

A template is somebody else's program. It runs in jinja's sandbox and sees the messages, the tools, the options of the
job and the folder's own special words; it has no clock, so that a prompt is the same on every day.

Invariants:
- the same messages give the same text, in every process;
- what a template does not take is a `ValueError` with the template's own words.
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
_WORDS_FILE: Final = "special_tokens_map.json"  # of older folders
_WITH_TOOLS: Final = "tool_use"  # the name of the template for them, where a folder has several
_WORDS: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class ChatTemplate:
    def __init__(self, sources: Mapping[str, str], *, given: Mapping[str, Any]) -> None:
        """`sources`: by name; a folder with one calls it "default". `given`: variables that every text is made with."""
        try:
            self._templates = {name: _environment().from_string(source) for name, source in sources.items()}
        except TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from error
        self._given = dict(given)

    @classmethod
    def of_folder(cls, folder: Path, options: Mapping[str, Any]) -> Self | None:
        """None: it has none. Raises `ValueError`."""
        config = _read(folder / CONFIG_FILE)
        sources = _sources(folder, config)
        known = {**_read(folder / _WORDS_FILE), **config}
        words = {name: _word(known[name]) for name in _WORDS if known.get(name)}
        return cls(sources, given={**words, **options}) if sources else None

    def rendered(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """With the opening of the answer that is asked for."""
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
            raise ValueError(f"the chat template does not take it: {str(error) or type(error).__name__}") from error


def _sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The file of its own has the last word, as in `transformers`."""
    file = folder / TEMPLATE_FILE
    if file.is_file():
        return {"default": file.read_text(encoding="utf-8")}
    match config.get("chat_template"):
        case None:
            return {}
        case str(found):
            return {"default": found}
        case [*several] if all(map(_is_named, several)):
            return {each["name"]: each["template"] for each in several}
    raise ValueError(f'{CONFIG_FILE}: chat_template: a text, or a list of objects with "name" and "template"')


def _is_named(each: object) -> bool:
    return isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("template"), str)


def _word(value: str | Mapping[str, Any]) -> str:
    return value if isinstance(value, str) else str(value["content"])


def _read(file: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{file.name}: not JSON: {error}") from error
    return settings


def _environment() -> ImmutableSandboxedEnvironment:
    """As `transformers` sets it up, which templates are written for, but for its clock: a template that would like to
    tell the date asks whether there is one."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _as_json
    made.globals["raise_exception"] = _refuse
    return made


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own is for web pages, and writes other letters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateError(message)


class _Generation(Extension):
    """`{% generation %}`, by which some templates mark what the model wrote; we know that by the tokens."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))
