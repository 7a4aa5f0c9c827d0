"""The fields of the new-job form, generated from `JobSpec`: a new setting appears on the page automatically.

Invariants:
- a field's name is its path in the spec (`training.steps`), its bounds and description are the model's own;
- typed values stay strings until the model has validated them, so no input is lost.
"""

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from backend.pages.typed_numbers import plain_number
from engine.presets.by_model import PRESET_NUMBERS
from engine.spec.job import JobSpec
from engine.spec.settings.conditional import CONDITIONAL_SETTINGS
from engine.spec.settings.invalid_fields import plain_bound

Kind = Literal["text", "whole", "number", "choice", "flag", "words", "settings", "code"]

# The settings of a first job, in page order. All others are folded by section.
SHOWN = (
    "name",
    "model.source",
    "schedule.name",
    "training.steps",
    "optimizer.learning_rate",
    "rollout.replicas",
)
_NOT_ASKED = {"schema_version"}
_CODE = {"environment.code"}
_YES, _NO = "yes", "no"
_TITLES: Mapping[str, str] = {
    "schedule.name": "Schedule",
    "environment.name": "Environment",
    "algorithm.name": "Algorithm",
    "model.source": "Model",
    "max_runtime_s": "Maximum runtime",
    "training.seed": "Seed",
    "training.steps": "Steps",
    "optimizer.course": "Learning rate schedule",
    "evaluation.prompts": "Held-out prompts",
    "evaluation.every": "Evaluate every",
    "evaluation.samples": "Answers per held-out prompt",
    "evaluation.pass_mark": "Pass mark",
}
# Short texts in place of long API descriptions that the help page has in full.
_HELP: Mapping[str, str] = {"schedule.name": "How generation and training wait for each other. Help describes each."}
_UNITS: Mapping[str, str] = {
    "max_runtime_s": "seconds",
    "rollout.max_new_tokens": "tokens",
    "evaluation.every": "steps",
    "training.checkpoint_every": "steps",
    "training.checkpoint_minutes": "minutes",
    "optimizer.warmup_steps": "steps",
    "schedule.max_staleness": "versions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecField:
    path: str
    title: str
    kind: Kind
    description: str
    default: Any
    optional: bool = False
    choices: tuple[str, ...] = ()
    bounds: Mapping[str, float] = field(default_factory=dict)
    """By ge, gt, le, lt, min_length, max_length."""
    is_preset: bool = False
    """If empty: the model's preset, or the default if the model has none."""
    acts_only: str = ""
    """The condition under which the field has an effect; empty: always."""

    @property
    def completes(self) -> str:
        """The id of the list of names that completes it."""
        return "models" if self.path in ("model.source", "algorithm.teacher.source") else ""

    @property
    def id(self) -> str:
        return "f-" + self.path.replace(".", "-")

    @property
    def pointer(self) -> str:
        return "/" + self.path.replace(".", "/")

    @property
    def section(self) -> str:
        return self.path.partition(".")[0] if "." in self.path else "job"

    @property
    def unit(self) -> str:
        return _UNITS.get(self.path, "")

    @property
    def long(self) -> bool:
        return self.kind in ("settings", "code")

    @property
    def range(self) -> str:
        """1 to 4,096; above 0, at most 1."""
        low, high = self.bounds.get("ge"), self.bounds.get("le")
        if low is not None and high is not None:
            return f"{plain_bound(low)} to {plain_bound(high)}"
        said = [
            f"{word} {plain_bound(self.bounds[key])}"
            for key, word in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
            if key in self.bounds
        ]
        return ", ".join(said)

    @property
    def default_json(self) -> str:
        return json.dumps(None if self.default is PydanticUndefined else self.default)

    def text_of(self, value: Any) -> str:  # whatever the spec holds there
        if value is None or value is PydanticUndefined:
            return ""
        if self.kind == "words":
            return ", ".join(value)
        if self.kind == "flag" and isinstance(value, bool):
            return _YES if value else _NO
        if self.kind == "settings":
            return "\n".join(f"{key} = {setting_text(each)}" for key, each in value.items())
        return str(value)

    def value_of(self, text: str) -> Any:  # the model judges it
        """The text converted to the field's kind; unchanged if that fails. Raises `TwoReadings`."""
        text = text.replace("\r\n", "\n") if self.kind == "code" else text.strip()
        match self.kind:
            case "flag":
                return {_YES: True, _NO: False}.get(text, text)
            case "words":
                return [word.strip() for word in text.split(",") if word.strip()]
            case "settings":
                return settings_of(text)
            case "whole" | "number" | "choice" if not text and self.optional:
                return None
            case "whole" | "number":
                return plain_number(text, whole=self.kind == "whole")
            case _:
                return text


@cache
def spec_fields() -> tuple[SpecField, ...]:
    return tuple(_walk(JobSpec, ()))


@cache
def field_at(path: str) -> SpecField | None:
    return next((each for each in spec_fields() if each.path == path), None)


def value_at(document: Mapping[str, Any], path: str) -> Any:  # whatever the spec holds there
    here: Any = document
    for step in path.split("."):
        here = here.get(step) if isinstance(here, Mapping) else None
    return here


def put_at(document: dict[str, Any], path: str, value: object) -> None:
    *way, last = path.split(".")
    for step in way:
        document = document.setdefault(step, {})
    document[last] = value


def _walk(model: type[BaseModel], way: tuple[str, ...]) -> Iterator[SpecField]:
    for name, info in model.model_fields.items():
        kind, optional, choices = _kind_of(info.annotation)
        path = ".".join((*way, name))
        if path in _NOT_ASKED:
            continue
        if kind is None:
            assert isinstance(info.annotation, type), f"{path}: a kind that this form does not know"
            yield from _walk(info.annotation, (*way, name))
        else:
            is_preset = path in PRESET_NUMBERS
            acts_only = CONDITIONAL_SETTINGS[path].only if path in CONDITIONAL_SETTINGS else ""
            yield SpecField(
                path=path,
                title=_TITLES.get(path, _title(way, name)),
                kind="code" if path in _CODE else kind,
                description=(_HELP.get(path) or info.description or "").removesuffix(acts_only).rstrip(),
                default=info.get_default(call_default_factory=True, validated_data={}),
                optional=optional,
                choices=(_YES, _NO) if kind == "flag" else (*([""] if is_preset and choices else []), *choices),
                bounds=_bounds(info),
                is_preset=is_preset,
                acts_only=acts_only,
            )


def _title(way: tuple[str, ...], name: str) -> str:
    """A title for a field: its path below its section."""
    words = [*way[1:], *([] if name == "name" and way[1:] else [name])]
    return " ".join(words).replace("_", " ").capitalize()


def _kind_of(annotation: Any) -> tuple[Kind | None, bool, tuple[str, ...]]:  # types of types
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType) and type(None) in args:
        [inner] = [arg for arg in args if arg is not type(None)]
        kind, _, choices = _kind_of(inner)
        return kind, True, ("", *choices) if choices else ()
    if origin is Literal:
        return "choice", False, tuple(str(arg) for arg in args)
    if origin in (list, dict):
        return ("words" if origin is list else "settings"), False, ()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None, False, ()
    return {bool: "flag", int: "whole", float: "number"}.get(annotation, "text"), False, ()  # type: ignore[return-value]


def _bounds(info: FieldInfo) -> dict[str, float]:
    names = ("ge", "gt", "le", "lt", "min_length", "max_length")
    bounds = {name: getattr(rule, name, None) for rule in info.metadata for name in names if hasattr(rule, name)}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def settings_of(text: str) -> dict[str, Any]:
    """One `key = value` per line. A line without `=` becomes a key, which the model refuses in its error."""
    pairs = (line.partition("=") for line in text.splitlines() if line.strip())
    return {key.strip(): _setting(value.strip()) for key, _, value in pairs}


def _setting(text: str) -> bool | int | float | str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def setting_text(value: object) -> str:
    """The shortest text that `_setting` reads back as the same value."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if _setting(text) == value and type(_setting(text)) is type(value) else json.dumps(value)
