"""Parses a row of a data set into a question.

    {"prompt": "What is 6 times 7?", "answer": "42"}
    {"prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "6 * 7?"}], "answer": 42}

Invariant: a row becomes a question or an error text that explains why not; nothing is guessed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from engine.environments.port import Message, Prompt, Split, Tool

ASKING: Final = ("user", "tool")
ROLES: Final = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    place: int
    """The address of the row in its file."""
    number: int
    """For error texts: from 1 on."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    wrong: str = ""
    """Why the row cannot be read; empty: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a data set that make up a question."""

    prompt: str = "prompt"
    answer: str = "answer"
    tools: str = "tools"
    all_to_judge: bool = False
    """The judge gets all other columns too, and an answer is optional. Otherwise the other columns are not read."""

    @property
    def own(self) -> tuple[str, ...]:
        return (self.prompt, self.answer, self.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    prompt: str
    """As readable text."""
    answer: str | None
    """As text; lists and objects as JSON. None: the row has no answer."""
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    others: Mapping[str, str | int] = field(default_factory=dict)
    """Other columns: texts and integers as they are, everything else as JSON."""

    @property
    def identity(self) -> str:
        """The text whose hash decides the split."""
        return json.dumps(self.messages, sort_keys=True, default=str) if self.messages else self.prompt

    @property
    def facts(self) -> dict[str, str | int]:
        return dict(self.others) if self.answer is None else {**self.others, "answer": self.answer}

    def as_prompt(self, split: Split, ordinal: int) -> Prompt:
        return Prompt(
            split=split,
            ordinal=ordinal,
            text=self.prompt,
            facts=self.facts,
            messages=self.messages,
            tools=self.tools,
        )


def question_of(fields: Mapping[str, Any], columns: Columns) -> Question:
    """Raises `ValueError`."""
    prompt, answer = fields.get(columns.prompt), fields.get(columns.answer)
    messages = _parse_messages(prompt, columns.prompt) if isinstance(prompt, list) else ()
    if not messages and (not isinstance(prompt, str) or not prompt.strip()):
        raise ValueError(f"{columns.prompt}: a text that is not empty, or a list of messages, got {prompt!r:.100}")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | list | dict):
        if not columns.all_to_judge or answer is not None:
            raise ValueError(f"{columns.answer}: a text, a number, a list or an object, got {answer!r:.100}")
        answer = None
    return Question(
        prompt=as_text(messages) if messages else str(prompt),
        answer=answer if answer is None or isinstance(answer, str) else _json(answer),
        messages=messages,
        tools=_parse_tools(fields.get(columns.tools), columns.tools),
        others=_others(fields, columns) if columns.all_to_judge else {},
    )


def as_text(messages: Sequence[Message]) -> str:
    return "\n\n".join(f"{each['role']}: {each.get('content', '')}" for each in messages)


def _parse_messages(given: Sequence[Any], column: str) -> tuple[Message, ...]:
    if not given:
        raise ValueError(f"{column}: at least one message, got an empty list")
    for number, each in enumerate(given, start=1):
        if not isinstance(each, dict) or each.get("role") not in ROLES:
            rule = f'an object with "role", one of {", ".join(ROLES)}'
            raise ValueError(f"{column}: message {number}: {rule}, got {each!r:.100}")
    if given[-1]["role"] not in ASKING:
        raise ValueError(f"{column}: the last message must be a user's or a tool's, got {given[-1]['role']}'s")
    return tuple(_join_parts(each, f"{column}: message {number}") for number, each in enumerate(given, start=1))


def _join_parts(message: Message, where: str) -> Message:
    """Joins text parts: templates of text-only models drop a list of parts, or print it as Python does."""
    match message.get("content", ""):
        case str():
            return message
        case [*parts] if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
            return {**message, "content": "\n".join(part["text"] for part in parts)}
    raise ValueError(f"{where}: content: a text or a list of parts with text, got {message!r:.100}")


def _parse_tools(given: Any, column: str) -> tuple[Tool, ...]:
    """Accepts JSON too: a table stores tools as JSON because their fields differ."""
    try:
        tools = json.loads(given) if isinstance(given, str) and given else given or []
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{column}: a list of objects, or one as JSON, got {given!r:.100}") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"{column}: a list of objects, got {given!r:.100}")
    return tuple(tools)


def _others(fields: Mapping[str, Any], columns: Columns) -> dict[str, str | int]:
    return {name: _plain(value) for name, value in fields.items() if name not in columns.own and value is not None}


def _plain(value: Any) -> str | int:
    return value if isinstance(value, str | int) and not isinstance(value, bool) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
