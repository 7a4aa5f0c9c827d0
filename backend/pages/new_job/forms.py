"""The new-job form: the typed values, their errors, and the spec if there are none.

Invariants:
- all errors are shown together, each next to its field; errors without a field are at the top;
- the submitted spec is the one that `JobSpec` parsed from exactly the typed values.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from backend.errors import FieldError, field_errors
from backend.pages.new_job.spec_fields import SHOWN, SpecField, field_at, put_at, spec_fields, value_at
from backend.pages.typed_numbers import TwoReadings
from engine.presets.by_model import without_presets
from engine.spec.job import JobSpec
from engine.spec.settings.conditional import without_effect
from engine.spec.settings.invalid_fields import field_message

_NAMES = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundField:
    field: SpecField
    text: str
    errors: tuple[str, ...] = ()
    is_idle: bool = False
    """Empty and without effect in this job, so disabled."""

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
    """By path; errors without a field have the path ""."""
    _combination: JobSpec | None = None
    """The spec that decides which settings have no effect; invalid values are replaced by their defaults."""

    @classmethod
    def showing(cls, spec: JobSpec) -> "JobForm":
        document = without_presets(spec)
        texts = {each.path: each.text_of(value_at(document, each.path)) for each in spec_fields()}
        return cls(texts=texts, spec=spec, _combination=spec)

    @classmethod
    def typed(cls, posted: Mapping[str, str]) -> "JobForm":
        """Disabled fields, which a browser does not send, have their defaults."""
        form = cls(texts={each.path: posted.get(each.path, each.text_of(each.default)) for each in spec_fields()})
        form._validate()
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
        """All errors, in page order."""
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
        """Adds a service's errors to the fields that their pointers name, and clears the spec."""
        self.remark(errors, otherwise)
        self.spec = None

    def remark(self, errors: Iterable[FieldError], otherwise: str = "") -> None:
        """The same for a preview: keeps the spec."""
        errors = list(errors)
        for error in errors:
            self._add_error(error.pointer, _sentence(error.message))
        if not errors and otherwise:
            self._add_error("", otherwise)

    def _validate(self) -> None:
        document: dict[str, Any] = {}
        for each in spec_fields():
            if self.texts[each.path].strip() or not each.is_preset:
                try:
                    put_at(document, each.path, each.value_of(self.texts[each.path]))
                except TwoReadings as doubt:
                    self._add_error(each.pointer, str(doubt))
        try:
            spec = JobSpec.model_validate(document)
        except ValidationError as failure:
            for pointer, message in _describe_errors(failure, document):
                self._add_error(pointer, message)
            self._validate_whole(document)
        else:
            self.spec = None if self.errors else spec
            self._combination = spec

    def _validate_whole(self, document: dict[str, Any]) -> None:
        """pydantic validates combinations of fields only once each field is valid, so invalid fields get a stand-in.
        Settings without effect are reported once all fields are valid: a corrected field may give them an effect."""
        for path in list(self.errors):
            found = field_at(path)
            if found is not None:
                put_at(document, path, "a name" if path == "name" else found.default)
        self._combination = _parse_leniently(document)
        try:
            JobSpec.model_validate(document)
        except ValidationError as failure:
            wrong = set(self.errors)
            for pointer, message in _describe_errors(failure, document, without="no_effect"):
                if not wrong & set(_NAMES.findall(message)):  # the stand-in may cause the error
                    self._add_error(pointer, message)

    def _add_error(self, pointer: str, message: str) -> None:
        path = self._path_of(pointer, message)
        errors = self.errors.setdefault(path, [])
        if message not in errors:
            errors.append(message)

    def _path_of(self, pointer: str, message: str) -> str:
        steps = pointer.strip("/").split("/")
        for length in range(len(steps), 0, -1):  # an error inside a list or a mapping belongs to its field
            if field_at(path := ".".join(steps[:length])):
                return path
        named = _NAMES.match(message.lower())  # "evaluation.every must be at most training.steps"
        return named[0] if named and field_at(named[0]) else ""

    def _bound(self, found: SpecField) -> BoundField:
        text, errors = self.texts.get(found.path, ""), tuple(self.errors.get(found.path, ()))
        idle = without_effect(self._combination) if self._combination is not None else {}
        is_idle = found.path in idle and not errors and text in ("", found.text_of(found.default))
        return BoundField(field=found, text=text, errors=errors, is_idle=is_idle)


def _parse_leniently(document: object) -> JobSpec | None:
    """Without validation of combinations."""
    try:
        return JobSpec.accepted(document)
    except ValidationError:
        return None


def _describe_errors(failure: ValidationError, document: object, without: str = "") -> list[tuple[str, str]]:
    """(pointer, sentence) for every invalid place, except errors of the type `without`. If several readings of a place
    failed, the plainest error is used."""
    pointers: Sequence[FieldError] = field_errors(failure, document)
    raw: dict[tuple[int | str, ...], Mapping[str, Any]] = {}
    for error in failure.errors(include_url=False):
        raw.setdefault(error["loc"], error)
    if len(raw) != len(pointers):  # a union has several errors at one place
        return [(error.pointer, _sentence(error.message)) for error in pointers]
    places = zip(pointers, raw.values(), strict=True)
    return [(place.pointer, _describe_error(error)) for place, error in places if error["type"] != without]


def _describe_error(error: Mapping[str, Any]) -> str:
    if (got := error.get("input")) in ("", None):
        return "Must not be empty."
    return _sentence(field_message(error, got))


def _sentence(message: str) -> str:
    """Capitalizes the first letter, except of paths such as evaluation.every."""
    start = message if "." in message.split(" ")[0] else message[:1].upper() + message[1:]
    return start if start.endswith((".", "!", "?")) else start + "."
