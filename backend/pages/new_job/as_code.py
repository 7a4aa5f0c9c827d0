"""The submission of a form's job as code: curl, Python and command line.

Invariants:
- all three send the same body, without default values: the API fills them in;
- user input is always quoted, and cannot break out of its quotes.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.pages import curl

_PYTHON = """\
from laminar_client import Laminar

with Laminar() as client:  # reads LAMINAR_URL and LAMINAR_API_KEY
    job = client.jobs.submit(
{arguments}
    )
    print(job.id)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    key: str
    title: str
    text: str


def calls(body: Mapping[str, Any]) -> list[Call]:
    """`body`: the body of POST /jobs."""
    return [
        Call(key="curl", title="curl", text=curl.post("/jobs", dict(body), idempotent=True)),
        Call(key="python", title="Python", text=_python(body)),
        Call(key="command", title="Command line", text=_command(body)),
    ]


def _python(body: Mapping[str, Any]) -> str:
    arguments = [
        _literal(body["spec"], 8),
        *(f"{name}={_literal(value, 8)}" for name, value in body.items() if name != "spec"),
    ]
    return _PYTHON.format(arguments="\n".join(f"        {each}," for each in arguments))


def _literal(value: object, indent: int) -> str:
    """A Python literal; long values are laid out on several lines."""
    within, end = " " * (indent + 4), " " * indent
    match value:
        case dict() if value:
            rows = "".join(
                f"{within}{_literal(key, 0)}: {_literal(each, indent + 4)},\n" for key, each in value.items()
            )
            return f"{{\n{rows}{end}}}"
        case str() if "\n" in value:
            lines = "".join(f"{within}{_literal_text(line)}\n" for line in value.splitlines(keepends=True))
            return f"(\n{lines}{end})"
        case str():
            return _literal_text(value)
    return repr(value)


def _literal_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # every JSON escape means the same in Python


def _command(body: Mapping[str, Any]) -> str:
    """Every line of the document begins with a brace or a blank, so none ends the here-document."""
    flags = {"project": "--project", "pool": "--pool", "start_from": "--from"}
    options = " ".join(f"{flag} {shlex.quote(body[name])}" for name, flag in flags.items() if name in body)
    return f"laminar submit - {options} <<'SPEC'\n{json.dumps(body['spec'], ensure_ascii=False, indent=2)}\nSPEC\n"
