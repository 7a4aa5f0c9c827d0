"""The new-job form: the typed values, their faults, and the spec if there are none.

Invariants:
- every error is told at once, beside its field; what belongs to no field stands on top;
- the spec that is submitted is the one that `JobSpec` made of exactly what was typed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from backend.errors import FieldError, field_errors, plain_message
from backend.pages.spec_fields import SHOWN, SpecField, field_at, plain_bound, put_at, spec_fields, value_at
from backend.pages.typed_numbers import TwoReadings
from engine.spec.job import JobSpec
from engine.spec.knob_effects import without_effect
from engine.spec.presets import as_said

_NAMES = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundField:
    field: SpecField
    text: str
    errors: tuple[str, ...] = ()
    is_idle: bool = False
    """It would do nothing in this job, and says nothing: it cannot be changed here."""

    @property
    def described_by(self) -> str:
        acts = "acts" if self.field.acts_only else ""
        parts = ("error" if self.errors else "", "range" if self.field.range else "", "help", acts)
        return " ".join(f"{self.field.id}-{part}" for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    name: str
    fields: tuple[BoundField, ...]

    @property
    def num_errors(self) -> int:
        return sum(bool(each.errors) for each in self.fields)


@dataclass(slots=True, kw_only=True)
class JobForm:
    texts: Mapping[str, str]
    """By path, as typed."""
    spec: JobSpec | None = None
    errors: dict[str, list[str]] = field(default_factory=dict)
    """By path; what belongs to no field has the path ""."""
    _combination: JobSpec | None = None
    """By which settings are without effect: what is wrong has its default in it."""

    @classmethod
    def showing(cls, spec: JobSpec) -> "JobForm":
        document = as_said(spec)
        texts = {each.path: each.text_of(value_at(document, each.path)) for each in spec_fields()}
        return cls(texts=texts, spec=spec, _combination=spec)

    @classmethod
    def typed(cls, posted: Mapping[str, str]) -> "JobForm":
        """What a browser does not send, since it cannot be changed there, has its default."""
        form = cls(texts={each.path: posted.get(each.path, each.text_of(each.default)) for each in spec_fields()})
        form._judge()
        return form

    @property
    def shown(self) -> list[BoundField]:
        return [self._bound(found) for path in SHOWN if (found := field_at(path))]

    @property
    def sections(self) -> list[Section]:
        folded = [each for each in spec_fields() if each.path not in SHOWN]
        sections = (
            Section(name=name, fields=tuple(self._bound(each) for each in folded if each.section == name))
            for name in dict.fromkeys(each.section for each in spec_fields())
        )
        return [section for section in sections if section.fields]

    @property
    def summary(self) -> list[tuple[SpecField | None, str]]:
        """Every error in the order of the page."""
        paths = [*SHOWN, *(each.path for each in spec_fields() if each.path not in SHOWN), ""]
        return [(field_at(path), message) for path in paths for message in self.errors.get(path, ())]

    @property
    def of_no_field(self) -> list[str]:
        return self.errors.get("", [])

    @property
    def folded_wrong(self) -> bool:
        return any(path not in SHOWN for path in self.errors if path)

    @property
    def every_field(self) -> list[BoundField]:
        return [self._bound(each) for each in spec_fields()]

    def blame(self, errors: Iterable[FieldError], otherwise: str = "") -> None:
        """A service's refusal, beside the fields that its pointers name. There is no spec then."""
        self.remark(errors, otherwise)
        self.spec = None

    def remark(self, errors: Iterable[FieldError], otherwise: str = "") -> None:
        """The same of a spec that is still only looked at."""
        errors = list(errors)
        for error in errors:
            self._note(error.pointer, _sentence(error.message))
        if not errors and otherwise:
            self._note("", otherwise)

    def _judge(self) -> None:
        document: dict[str, Any] = {}
        for each in spec_fields():
            if self.texts[each.path].strip() or not each.is_preset:
                try:
                    put_at(document, each.path, each.value_of(self.texts[each.path]))
                except TwoReadings as doubt:
                    self._note(each.pointer, str(doubt))
        try:
            spec = JobSpec.model_validate(document)
        except ValidationError as failure:
            for pointer, message in _told(failure, document):
                self._note(pointer, message)
            self._judge_the_whole(document)
        else:
            self.spec = None if self.errors else spec
            self._combination = spec

    def _judge_the_whole(self, document: dict[str, Any]) -> None:
        """pydantic looks at how fields fit together only once each is right: so the wrong ones get a stand-in. What has
        no effect is told once all are right: it may have one beside what a wrong field was meant to say."""
        for path in list(self.errors):
            found = field_at(path)
            if found is not None:
                put_at(document, path, "a name" if path == "name" else found.default)
        self._combination = _as_far_as_read(document)
        try:
            JobSpec.model_validate(document)
        except ValidationError as failure:
            wrong = set(self.errors)
            for pointer, message in _told(failure, document, without="no_effect"):
                if not wrong & set(_NAMES.findall(message)):  # it may only be our stand-in that does not fit
                    self._note(pointer, message)

    def _note(self, pointer: str, message: str) -> None:
        path = self._path_of(pointer, message)
        said = self.errors.setdefault(path, [])
        if message not in said:
            said.append(message)

    def _path_of(self, pointer: str, message: str) -> str:
        steps = pointer.strip("/").split("/")
        for length in range(len(steps), 0, -1):  # an error inside a list or a mapping belongs to its field
            if field_at(path := ".".join(steps[:length])):
                return path
        named = _NAMES.match(message.lower())  # "evaluation.every must not exceed training.steps"
        return named[0] if named and field_at(named[0]) else ""

    def _bound(self, found: SpecField) -> BoundField:
        text, errors = self.texts.get(found.path, ""), tuple(self.errors.get(found.path, ()))
        idle = without_effect(self._combination) if self._combination is not None else {}
        is_idle = found.path in idle and not errors and text in ("", found.text_of(found.default))
        return BoundField(field=found, text=text, errors=errors, is_idle=is_idle)


def _as_far_as_read(document: object) -> JobSpec | None:
    """However its parts go together."""
    try:
        return JobSpec.accepted(document)
    except ValidationError:
        return None


def _told(failure: ValidationError, document: object, without: str = "") -> list[tuple[str, str]]:
    """(pointer, sentence) for every place, but not of errors of the type `without`. Where several readings of one place
    failed, the plainest is told."""
    pointers: Sequence[FieldError] = field_errors(failure, document)
    raw: dict[tuple[int | str, ...], Mapping[str, Any]] = {}
    for error in failure.errors(include_url=False):
        raw.setdefault(error["loc"], error)
    if len(raw) != len(pointers):  # a union: one place, several errors
        return [(error.pointer, _sentence(error.message)) for error in pointers]
    places = zip(pointers, raw.values(), strict=True)
    return [(place.pointer, _plainly(error)) for place, error in places if error["type"] != without]


def _plainly(error: Mapping[str, Any]) -> str:
    context, got = error.get("ctx") or {}, error.get("input")
    if got in ("", None):
        return "Must not be empty."
    bound = plain_bound(next((context[key] for key in ("ge", "gt", "le", "lt") if key in context), 0))
    match error["type"]:
        case "greater_than_equal":
            rule = f"at least {bound}"
        case "greater_than":
            rule = f"above {bound}"
        case "less_than_equal":
            rule = f"at most {bound}"
        case "less_than":
            rule = f"below {bound}"
        case "int_parsing" | "int_from_float" | "int_parsing_size" | "int_type":
            rule = "a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            rule = "a number"
        case "literal_error":
            rule = f"one of {context.get('expected', '')}"
        case "string_pattern_mismatch":
            rule = "lower-case letters, digits and _, a letter first"
        case "string_too_long" | "too_long":
            return f"At most {context.get('max_length', 0):,} {'characters' if isinstance(got, str) else 'entries'}."
        case _:
            return _sentence(plain_message(str(error["msg"])))
    return f"Must be {rule}; got {_short(got)}."


def _short(got: object) -> str:
    text = str(got)
    return text if len(text) <= 40 else text[:39] + "…"


def _sentence(message: str) -> str:
    """Paths keep their lower case: evaluation.every is a name."""
    start = message if "." in message.split(" ")[0] else message[:1].upper() + message[1:]
    return start if start.endswith((".", "!", "?")) else start + "."
