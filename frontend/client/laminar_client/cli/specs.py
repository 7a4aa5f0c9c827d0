"""Reads a spec from a JSON, TOML or YAML file, standard input or a template, and applies `--set a.b=value`."""

import json
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..client import Laminar
from .session import wrong_use

LARGEST = 1_000_000


def spec_from(
    file: str | None, template: str | None, settings: Sequence[str], name: str | None, client: Callable[[], Laminar]
) -> dict[str, Any]:
    if (file is None) == (template is None):
        wrong_use("Give either a spec file (or - for standard input) or --template NAME.")
    spec = client().team.template(template).spec if template is not None else read_spec(file or "-")
    for setting in settings:
        spec = with_setting(spec, setting)
    return {**spec, "name": name} if name is not None else spec


def read_spec(file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read(LARGEST + 1) if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        wrong_use(f"{file} cannot be read: {getattr(problem, 'strerror', None) or 'it is not UTF-8'}.")
    if len(text) > LARGEST:
        wrong_use(f"{file} is too large for a spec.")
    suffix = "" if file == "-" else Path(file).suffix.lower()
    try:
        document = _READERS.get(suffix, _guessed)(text)
    except ValueError as problem:
        wrong_use(f"{file}: {problem}")
    if not isinstance(document, dict):
        wrong_use(f"{file} must hold one object: name, model, environment, …")
    return document


def with_setting(spec: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """`training.steps=20`. The value is JSON, else text."""
    path, equals, text = setting.partition("=")
    names = path.split(".")
    if not equals or not all(names):
        wrong_use(f"--set {setting}: use the form section.name=value.")
    return _replaced(spec, names, _value(text), setting)


def _replaced(spec: Mapping[str, Any], names: Sequence[str], value: object, setting: str) -> dict[str, Any]:
    name, rest = names[0], names[1:]
    if not rest:
        return {**spec, name: value}
    below = spec.get(name, {})
    if not isinstance(below, Mapping):
        wrong_use(f"--set {setting}: {name} is a value, not a section.")
    return {**spec, name: _replaced(below, rest, value, setting)}


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _from_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        wrong_use("Reading YAML needs PyYAML: pip install 'laminar-client[yaml]', or use JSON or TOML.")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise ValueError(f"not valid YAML: {problem}") from None


def _guessed(text: str) -> Any:
    """For files without a known suffix: JSON if the text begins with a brace, else TOML."""
    return json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)


_READERS: Mapping[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".yaml": _from_yaml,
    ".yml": _from_yaml,
}
