"""Generates the reference section of README.md from the commands and calls.

Run `python -m frontend.client.reference` in the repository's root; a test fails if the section is out of date.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from .laminar_client import Laminar, errors
from .laminar_client.__main__ import COMMANDS
from .laminar_client.cli.commands import laminar
from .laminar_client.cli.session import EXIT_CODES
from .laminar_client.namespaces import Call, Streaming

assert COMMANDS, "the import registers the commands"
README = Path(__file__).resolve().parent / "README.md"
BEGIN, END = "<!-- reference: written by reference.py -->", "<!-- end of the reference -->"
SHARED = {"profile", "json", "quiet", "no_color", "help"}
VALUES = {"INTEGER RANGE": "N", "FLOAT RANGE": "X", "INTEGER": "N", "FLOAT": "X", "[%Y-%m-%d]": "2026-01-31"}


def reference() -> str:
    parts = [
        "### Commands",
        "",
        *_commands(),
        "",
        "### Exit codes",
        "",
        *_exit_codes(),
        "",
        "### Python",
        "",
        *_calls(),
    ]
    return "\n".join([*parts, "", "### Errors", "", *_errors()])


def with_reference(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _commands() -> Iterator[str]:
    yield "Every command also takes `--profile NAME`, `--json`, `--quiet` and `--no-color`.\n"
    yield "| command | description |\n|---|---|"
    for usage, command in sorted(_leaves(laminar, "laminar")):
        options = [_option(one) for one in command.params if isinstance(one, click.Option) and one.name not in SHARED]
        description = " ".join((command.help or "").replace("\b", "").split("\n\n")[0].split())
        shown = f"<br>{', '.join(options)}" if options else ""
        yield f"| `{_cell(usage)}` | {_cell(description)}{_cell(shown)} |"


def _leaves(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _leaves(below, f"{words} {name}")
        if not command.invoke_without_command:
            return
    arguments = [one.make_metavar(click.Context(command)) for one in command.params if isinstance(one, click.Argument)]
    yield " ".join([words, *arguments]), command


def _option(option: click.Option) -> str:
    name = max(option.opts, key=len)
    if option.is_flag:
        return f"`{name}`"
    value = option.make_metavar(click.Context(click.Command(name)))
    return f"`{name} {VALUES.get(value, value)}`"


def _exit_codes() -> Iterator[str]:
    yield "| code | means |\n|---|---|"
    for code, meaning in EXIT_CODES.items():
        yield f"| {code} | {meaning} |"


def _calls() -> Iterator[str]:
    yield "`AsyncLaminar` has the same calls: await them, or iterate with `async for`.\n"
    yield "| call | returns | |\n|---|---|---|"
    with Laminar("http://127.0.0.1", "only-for-this-table") as client:
        for space in ("jobs", "checkpoints", "models", "assets", "team", "webhooks"):
            for name, call in vars(type(getattr(client, space))).items():
                if isinstance(call, Call | Streaming):
                    yield _call_row(f"{space}.{name}", call)


def _call_row(name: str, call: Any) -> str:
    signature = inspect.signature(call.make)
    parameters = str(signature.replace(parameters=[_bare(one) for one in signature.parameters.values()],
                                       return_annotation=inspect.Signature.empty))  # fmt: skip
    gives = _gives(str(signature.return_annotation), is_stream=isinstance(call, Streaming))
    description = " ".join((inspect.getdoc(call.make) or "").split())
    return f"| `{name}{parameters}` | {gives} | {_cell(description)} |"


def _bare(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(annotation=inspect.Parameter.empty)


def _gives(annotation: str, *, is_stream: bool) -> str:
    """Generator[…Emit[X]…, Any, None] or Generator[…, Any, X], in words."""
    found = re.search(r"Emit\[([^\]]+)\]", annotation) if is_stream else re.search(r"Any, (.+)\]$", annotation)
    assert found, annotation
    name = re.sub(r"[\w.]*\.", "", found[1]).removeprefix("<class '").removesuffix("'>")
    return f"iterates `{name}`" if is_stream else "nothing" if name == "NoneType" else f"`{name}`"


def _errors() -> Iterator[str]:
    yield "| error | when |\n|---|---|"
    for kind in _family(errors.LaminarError):
        description = " ".join((inspect.getdoc(kind) or "").split())
        above = "" if kind is errors.LaminarError else f" (a `{kind.__bases__[0].__name__}`)"
        yield f"| `{kind.__name__}`{above} | {_cell(description)} |"


def _family(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _family(below)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    README.write_text(with_reference(README.read_text("utf-8")), "utf-8")
