"""One variable of the environment: its description for operators, its default, and its parser.

`python -m infra.variables` writes the table of infra/OPERATING.md and .env.example from these declarations.

Invariants:
- a reader refuses a text with a `ValueError` that states what would be accepted; `Variable.read` adds the variable's
  name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from backend.borders.proxies import Network, read_networks
from backend.missing import MissingSetting
from backend.outside.trust import trusted
from engine.spec.logs.log_text import form_of
from engine.spec.logs.spans import traces_address
from engine.spec.node_variables import NODE_VARIABLES

MOST_DAYS: Final = 10_000
Reader = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Variable:
    text: str
    """Description for operators: one line of Markdown that ends with a full stop."""
    default: str | None = None
    """None: the variable must be set."""
    when_unset: str = ""
    """The effect of an empty default, where `text` does not describe it."""
    reader: Reader = str

    def read(self, name: str, text: str) -> Any:
        try:
            return self.reader(text)
        except ValueError as error:
            message = str(error)
            raise MissingSetting(message if message.startswith(name) else f"{name}: {message}") from error


def declared(text: str, *, default: str | None = None, when_unset: str = "", read: Reader = str) -> Any:
    """A field of `Environment` with its variable's declaration. The field itself has no default."""
    return field(metadata={"variable": Variable(text, default, when_unset, read)})


def shared_with_nodes(name: str, *, read: Reader = str) -> Any:
    """A variable that Ray nodes read too."""
    variable = NODE_VARIABLES[name]
    return declared(
        variable.text, default="" if variable.when_unset else None, when_unset=variable.when_unset, read=read
    )


def read_switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"must be 0 or 1, got {text!r}")
    return text == "1"


def read_address(url: str) -> str:
    return url.rstrip("/")


def read_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def read_names(text: str) -> tuple[str, ...]:
    return tuple(text.lower().replace(",", " ").split())


def read_hosts(text: str) -> tuple[str, ...]:
    return tuple(host.strip() for host in text.split(",") if host.strip())


def whole_number(least: int) -> Reader:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= MOST_DAYS):
            raise ValueError(f"must be a whole number from {least} to {MOST_DAYS}, got {text!r}")
        return int(text)

    return read


def read_factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0.0 < factor < float("inf"):
        raise ValueError(f"must be a number above 0, got {text!r}")
    return factor


def read_log_format(name: str) -> str:
    form_of(name)
    return name


def read_collector(url: str) -> str:
    return traces_address(url) if url else ""


def read_authorities(file: str) -> str:
    try:
        trusted(file)
    except OSError as error:
        raise ValueError(f"must be a file of certificates (PEM), got {file!r}: {error.strerror or error}") from error
    return file


def read_proxies(text: str) -> tuple[Network, ...]:
    try:
        return read_networks(text)
    except ValueError as error:
        raise ValueError(f"{error}; list addresses or networks such as 10.0.0.7, 10.0.0.0/8") from error


def read_metrics_token(token: str, file: str) -> str:
    if not file:
        return token
    if token:
        raise MissingSetting("LAMINAR_METRICS_TOKEN and LAMINAR_METRICS_TOKEN_FILE: set only one of them")
    try:
        token = Path(file).read_text().strip()
    except OSError as error:
        raise MissingSetting(
            f"LAMINAR_METRICS_TOKEN_FILE: must be a file readable by this user, got {file} ({error.strerror})"
        ) from error
    if not token:
        raise MissingSetting(f"LAMINAR_METRICS_TOKEN_FILE: must be a file with a token, but {file} is empty")
    return token
