"""A spec's settings by dotted path, such as `trainer.learning_rate`."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from engine.spec.job import JobSpec


def is_set(spec: JobSpec, path: str) -> bool:
    """Whether the spec sets this path explicitly, even to its default."""
    node: BaseModel = spec
    *parents, last = path.split(".")
    for name in parents:
        if name not in node.model_fields_set:
            return False
        node = getattr(node, name)
    return last in node.model_fields_set


def with_settings(spec: JobSpec, settings: Mapping[str, Any]) -> JobSpec | None:
    """The spec with these values by path. None: no such setting exists, or the result is not valid."""
    document: dict[str, Any] = spec.model_dump(mode="json", exclude_unset=True)
    for path, value in settings.items():
        node = document
        *parents, last = path.split(".")
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    try:
        return JobSpec.model_validate(document)
    except ValidationError:
        return None


def value_at(spec: JobSpec, path: str) -> Any:
    node: Any = spec
    for name in path.split("."):
        node = getattr(node, name)
    return node
