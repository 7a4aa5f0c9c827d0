"""One variable of the environment: what operators read about it, its default, and how its text becomes a value.

`python -m infra.variables` writes the table of infra/OPERATING.md and .env.example from these declarations.

Invariants:
- a parser that refuses a text names the variable, the text and what would be accepted.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.borders.proxies import Network, read_networks
from backend.missing import MissingSetting
from backend.outside.addresses import broker_address
from backend.outside.trust import trusted
from engine.spec.log_text import form_of
from engine.spec.spans import traces_address


@dataclass(frozen=True, slots=True)
class Variable:
    text: str
    """What the variable is, for operators: one line of Markdown that ends with a full stop."""
    default: str | None = None
    """None: the variable must be set."""
    when_unset: str = ""
    """The effect of an empty default, where `text` does not say it."""


def declared(text: str, *, default: str | None = None, when_unset: str = "") -> Any:
    """A field of `Environment` with its variable's declaration. The field itself has no default."""
    return field(metadata={"variable": Variable(text, default, when_unset)})


def parse_log_format(name: str) -> str:
    try:
        form_of(name)
    except ValueError as error:
        raise MissingSetting(str(error)) from error
    return name


def parse_collector(url: str) -> str:
    try:
        return traces_address(url) if url else ""
    except ValueError as error:
        raise MissingSetting(str(error)) from error


def parse_positive(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 10_000):
        raise MissingSetting(f"{name} must be a whole number from 1 to 10000, got {text!r}")
    return int(text)


def parse_authorities(file: str) -> str:
    try:
        trusted(file)
    except OSError as error:
        raise MissingSetting(
            f"LAMINAR_CA_FILE: a file of certificates (PEM), got {file!r}: {error.strerror or error}"
        ) from error
    return file


def parse_broker(url: str, ca_file: str) -> str:
    try:
        return broker_address(url, ca_file)
    except ValueError as error:
        raise MissingSetting(f"LAMINAR_BROKER_URL: {error}") from error


def parse_networks(text: str) -> tuple[Network, ...]:
    try:
        return read_networks(text)
    except ValueError as error:
        raise MissingSetting(
            f"LAMINAR_TRUSTED_PROXIES: {error}; write addresses or networks such as 10.0.0.7 or 10.0.0.0/8, by commas"
        ) from error


def read_metrics_token(token: str, file: str) -> str:
    if not file:
        return token
    if token:
        raise MissingSetting("LAMINAR_METRICS_TOKEN and LAMINAR_METRICS_TOKEN_FILE: set one of them, got both")
    try:
        token = Path(file).read_text().strip()
    except OSError as error:
        raise MissingSetting(
            f"LAMINAR_METRICS_TOKEN_FILE: a file that this user may read, got {file} ({error.strerror})"
        ) from error
    if not token:
        raise MissingSetting(f"LAMINAR_METRICS_TOKEN_FILE: a file with a token in it, got an empty one, {file}")
    return token
