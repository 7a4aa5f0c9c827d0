"""The ways in which a model calls a tool, is told how, and is told what came of it.

marks      <tool>calculator 37 * 48</tool>                         explained in the prompt; any model
tool_call  <tool_call>{"name": "calculator", "arguments": {…}}     explained by the chat template, as Qwen, Hermes and
                                                                   others were taught; thoughts are not looked at
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
# What each does, and its one argument.
_DESCRIBED: Final = {
    "calculator": ("Works out arithmetic.", "expression", "Numbers, + - * / % ^ and brackets."),
    "search": ("Finds documents.", "query", "Words to look for."),
    "python": ("Runs a program and shows what it prints.", "program", "Python."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    start: int
    """Where in the text it begins."""
    name: str
    argument: str
    wrong: str = ""
    """What was wrong with it."""


class Calls(Protocol):
    def rules(self, tools: Iterable[str]) -> str: ...

    def described(self, tools: Iterable[str]) -> tuple[Tool, ...]:
        """For the chat template."""
        ...

    def looked_at(self, said: str) -> str: ...

    def found(self, said: str) -> Call | None: ...

    def answered(self, result: str) -> str: ...


def calls_by(name: str) -> Calls:
    return Marks() if name == MARKS else ToolCalls()


class Marks:
    def rules(self, tools: Iterable[str]) -> str:
        return "\n".join(["Answer the question. You may use tools:", *(_EXAMPLES[name] for name in tools)])

    def described(self, tools: Iterable[str]) -> tuple[Tool, ...]:
        return ()

    def looked_at(self, said: str) -> str:
        return said

    def found(self, said: str) -> Call | None:
        found = _MARKS.search(said)
        return None if found is None else Call(start=found.start(), name=found[1], argument=found[2].strip())

    def answered(self, result: str) -> str:
        return f"\n<result>{result}</result>\n"


class ToolCalls:
    def rules(self, tools: Iterable[str]) -> str:
        return "Answer the question. You may use tools."

    def described(self, tools: Iterable[str]) -> tuple[Tool, ...]:
        return tuple(map(_schema, tools))

    def looked_at(self, said: str) -> str:
        return said.rpartition(END_OF_THOUGHTS)[2]

    def found(self, said: str) -> Call | None:
        found = _TOOL_CALL.search(said)
        return None if found is None else _read(found[1], found.start())

    def answered(self, result: str) -> str:
        return result


def _schema(name: str) -> Tool:
    does, argument, is_of = _DESCRIBED[name]
    properties = {argument: {"type": "string", "description": is_of}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": does, "parameters": parameters}}


def _read(written: str, start: int) -> Call:
    try:
        call = json.loads(written)
    except (ValueError, RecursionError) as error:
        return Call(start=start, name="", argument="", wrong=f"not JSON: {error}")
    match call:
        case {"name": str(name), "arguments": dict(arguments)} if len(arguments) == 1:
            return Call(start=start, name=name, argument=str(next(iter(arguments.values()))).strip())
    return Call(start=start, name="", argument="", wrong='an object with "name", and "arguments" with the one it takes')
