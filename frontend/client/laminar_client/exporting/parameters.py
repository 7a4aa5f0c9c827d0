"""A job's spec as flat parameters, such as `training.steps`."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Plain: TypeAlias = str | bool | int | float


def flat(spec: Mapping[str, Any], *, below: str = "") -> dict[str, Plain]:
    """Lists and null are written as JSON."""
    found: dict[str, Plain] = {}
    for name, value in spec.items():
        if isinstance(value, Mapping):
            found |= flat(value, below=f"{below}{name}.")
        else:
            found[below + name] = value if isinstance(value, str | bool | int | float) else json.dumps(value)
    return found


def as_text(value: Plain) -> str:
    return value if isinstance(value, str) else json.dumps(value)
