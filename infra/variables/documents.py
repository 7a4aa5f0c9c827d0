""".env.example, and infra/OPERATING.md with its tables of variables, as they should be."""

import re
from pathlib import Path
from typing import Final

from backend.environment import DECLARED, OPTIONAL
from engine.spec.node_variables import NODE_VARIABLES
from infra.variables.containers import LINES, Line

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE: Final = ROOT / ".env.example"
OPERATING: Final = ROOT / "infra" / "OPERATING.md"
BEGIN: Final = "<!-- written by python -m infra.variables -->\n"
END: Final = "<!-- end of what it writes -->\n"

_HEAD: Final = """\
# What docker-compose.yml reads. Copy to .env, fill in, keep it out of git. `make up` needs none of this.
# A good secret: python3 -c "import secrets; print(secrets.token_hex(32))"
# Files and folders are of this machine; the site must be able to read them as user 10001, the proxy as root.
# `python -m infra.variables` writes this file.

"""


def documents() -> dict[Path, str]:
    return {EXAMPLE: example(), OPERATING: with_table(OPERATING.read_text())}


def example() -> str:
    return _HEAD + "".join(f"# {_explanation(line)}\n{line.name}={line.value}\n" for line in LINES)


def with_table(document: str) -> str:
    before, _, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"infra/OPERATING.md must have a line {BEGIN.strip()} and later one {END.strip()}")
    return before + BEGIN + "\n" + table() + "\n" + table_of_nodes() + "\n" + END + after


def table() -> str:
    """The control plane's: the required variables first; within both parts in the order of their declarations."""
    rows = ["| variable | means | unless set |", "|---|---|---|"]
    for name in sorted(DECLARED, key=lambda name: name in OPTIONAL):
        variable = DECLARED[name]
        unset = "must be set" if variable.default is None else variable.when_unset or variable.default or "empty"
        rows.append(f"| `{name}` | {variable.text} | {unset} |")
    return "\n".join(rows) + "\n"


def table_of_nodes() -> str:
    shared = ", ".join(f"`{name}`" for name in NODE_VARIABLES if name in DECLARED)
    rows = [
        f"| `{name}` | {each.text} | {each.when_unset} |"
        for name, each in NODE_VARIABLES.items()
        if name not in DECLARED
    ]
    head = ["| variable of Ray nodes | means | unless set |", "|---|---|---|"]
    return f"Ray nodes read these of them: {shared}; and variables of their own:\n\n" + "\n".join([*head, *rows]) + "\n"


def _explanation(line: Line) -> str:
    text = re.sub(r"\[([^\]]+)\]\(#[^)]*\)", r"infra/OPERATING.md, \1", line.text)
    if line.is_optional:
        text = f"Optional. {text}" + (f" Empty: {line.when_empty}." if line.when_empty else "")
    return text.replace("`", "")
