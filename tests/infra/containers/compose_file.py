"""docker-compose.yml as a machine with these variables has it: what Compose puts in place of `${...}`, in a few lines.

`:-` (if unset or empty), `:+` (if set and not empty) and `:?`, one within the other; `$$` is a dollar.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "docker-compose.yml"
# What it refuses to be without.
FILLED_IN = {
    "POSTGRES_PASSWORD": "p", "VALKEY_PASSWORD": "v", "LAMINAR_SECRET_KEY": "s", "LAMINAR_RAY_TOKEN": "t",
    "LAMINAR_PUBLIC_URL": "https://laminar.example", "LAMINAR_ALLOWED_HOSTS": "laminar.example",
    "LAMINAR_VERSION": "0.1.0",
}  # fmt: skip
_INNERMOST = re.compile(r"(?<!\$)\$\{([A-Z_]+)(?::([-+?])([^${}]*))?\}")
_LAMINAR = ("web", "worker", "beat", "migrate", "ray-head", "ray-worker")


def compose(file: Path = FILE, /, **variables: str) -> dict[str, Any]:
    filled: dict[str, Any] = _filled(yaml.safe_load(file.read_text()), FILLED_IN | variables)
    return filled


def services(**variables: str) -> dict[str, Any]:
    found: dict[str, Any] = compose(**variables)["services"]
    return found


def seconds(text: str) -> float:
    units = {"s": 1, "m": 60}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+)([sm])", text))


def _filled(node: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, variables) for value in node]
    return _put_in(node, variables) if isinstance(node, str) else node


def _put_in(text: str, variables: Mapping[str, str]) -> str:
    def value_of(match: re.Match[str]) -> str:
        name, operator, word = match.groups()
        value = variables.get(name, "")
        if operator == "?":
            assert value, f"{name}: {word}"
        if operator == "+":
            return word if value else ""
        return value or (word if operator == "-" else "")

    before = ""
    while text != before:
        before, text = text, _INNERMOST.sub(value_of, text)
    return text.replace("$$", "$")
