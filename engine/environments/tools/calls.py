"""Formats of tool calls: the instructions in the prompt, the parsing of a call, the rendering of its result.

marks      <tool>calculator 37 * 48</tool>                         explained in the prompt; for any model
tool_call  <tool_call>{"name": "calculator", "arguments": {…}}     explained by the chat template, as Qwen, Hermes and
                                                                   others were trained; thoughts are ignored
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from engine.environments.port import Tool

MARKS: Final = "marks"
END_OF_THOUGHTS: Final = "</think>"
_MARKS: Final = re.compile(r"<tool>\s*(\w+)\s?(.*?)(?:</tool>|\Z)", re.DOTALL)
_TOOL_CALL: Final = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_EXAMPLES: Final = {
    "calculator": "<tool>calculator 12 * (3 + 4)</tool> works out arithmetic.",
    "search": "<tool>search words to look for</tool> finds documents.",
    "python": "<tool>python print(sum(range(10)))</tool> runs a program and shows what it prints.",
}
# Of each tool its description, its one argument, and the argument's description.
_DESCRIPTIONS: Final = {
    "calculator": ("Works out arithmetic.", "expression", "Numbers, + - * / % ^ and brackets."),
    "search": ("Finds documents.", "query", "Words to look for."),
    "python": ("Runs a program and shows what it prints.", "program", "Python."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    start: int
    """Offset of the call in the text."""
    name: str
    argument: str
    wrong: str = ""
    """Why the call cannot be read; empty: it can."""


class Calls(Protocol):
    def rules(self, tools: Iterable[str]) -> str: ...

    def tool_schemas(self, tools: Iterable[str]) -> tuple[Tool, ...]:
        """For the chat template."""
        ...

    def without_thoughts(self, text: str) -> str: ...

    def find_call(self, text: str) -> Call | None: ...

    def as_result(self, result: str) -> str: ...


def calls_by(name: str) -> Calls:
    return Marks() if name == MARKS else ToolCalls()


class Marks:
    def rules(self, tools: Iterable[str]) -> str:
        return "\n".join(["Answer the question. You may use tools:", *(_EXAMPLES[name] for name in tools)])

    def tool_schemas(self, tools: Iterable[str]) -> tuple[Tool, ...]:
        return ()

    def without_thoughts(self, text: str) -> str:
        return text

    def find_call(self, text: str) -> Call | None:
        match = _MARKS.search(text)
        return None if match is None else Call(start=match.start(), name=match[1], argument=match[2].strip())

    def as_result(self, result: str) -> str:
        return f"\n<result>{result}</result>\n"


class ToolCalls:
    def rules(self, tools: Iterable[str]) -> str:
        return "Answer the question. You may use tools."

    def tool_schemas(self, tools: Iterable[str]) -> tuple[Tool, ...]:
        return tuple(map(_tool_schema, tools))

    def without_thoughts(self, text: str) -> str:
        return text.rpartition(END_OF_THOUGHTS)[2]

    def find_call(self, text: str) -> Call | None:
        match = _TOOL_CALL.search(text)
        return None if match is None else _parse_call(match[1], match.start())

    def as_result(self, result: str) -> str:
        return result


def _tool_schema(name: str) -> Tool:
    description, argument, argument_description = _DESCRIPTIONS[name]
    properties = {argument: {"type": "string", "description": argument_description}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _parse_call(text: str, start: int) -> Call:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Call(start=start, name="", argument="", wrong=f"not JSON: {error}")
    match call:
        case {"name": str(name), "arguments": dict(arguments)} if len(arguments) == 1:
            return Call(start=start, name=name, argument=str(next(iter(arguments.values()))).strip())
    return Call(start=start, name="", argument="", wrong='expected an object with "name" and "arguments" (exactly one)')
