"""One preset: a setting's value for what a spec does not say, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from engine.spec.job import JobSpec

Value = float | int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    path: str
    value: Value
    """None: as the empty setting has it."""
    reason: str


def says(spec: JobSpec, path: str) -> bool:
    """Whether somebody set it, be it to its default."""
    here: BaseModel = spec
    *way, last = path.split(".")
    for step in way:
        if step not in here.model_fields_set:
            return False
        here = getattr(here, step)
    return last in here.model_fields_set


def with_settings(spec: JobSpec, settings: Mapping[str, Any]) -> JobSpec | None:
    """`settings`: values by path. None: the spec has no such setting, or they do not fit together."""
    document: dict[str, Any] = spec.model_dump(mode="json", exclude_unset=True)
    for path, value in settings.items():
        here = document
        *way, last = path.split(".")
        for step in way:
            here = here.setdefault(step, {})
        here[last] = value
    try:
        return JobSpec.model_validate(document)
    except ValidationError:
        return None


def value_at(spec: JobSpec, path: str) -> Any:
    here: Any = spec
    for step in path.split("."):
        here = getattr(here, step)
    return here
