"""Refusals of services. Pages show their text, the REST API returns them as problem+json.

Invariants:
- a class' docstring is the default message of its errors;
- `pointer` is a JSON pointer (RFC 6901) into the user's input; `retryable` means that the same request may succeed
  later;
- all errors of one request are reported together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from engine.spec.settings.invalid_fields import field_message, joined_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    pointer: str
    code: str
    message: str

    @property
    def sentence(self) -> str:
        """For a page, which does not show the pointer: "must begin with https://" ──▶ "URL must begin with https://."."""
        words = self.message
        if words.startswith(("must ", "is ", "can ")):
            name = self.pointer.rpartition("/")[2].replace("_", " ")
            words = f"{'URL' if name == 'url' else name} {words}"
        first = words.split(" ")[0]
        is_name = "." in first or ":" in first[:-1]  # training.steps, quota:write
        start = first if is_name else first[:1].upper() + first[1:]
        return start + words[len(first) :].rstrip(".") + "."


class Refusal(Exception):
    """The request was refused."""

    status: int = 400
    code: str = "refused"
    retryable: bool = False

    def __init__(
        self, detail: str = "", *, code: str = "", errors: Sequence[FieldError] = (), **extensions: Any
    ) -> None:
        self.detail = detail or " ".join((type(self).__doc__ or "").split())
        self.code = code or self.code
        self.errors = tuple(errors)
        self.extensions = extensions
        self.headers: dict[str, str] = {}
        super().__init__(self.detail)

    @property
    def sentences(self) -> list[str]:
        """For a page: one per field error, without duplicates; the detail if there are none."""
        return list(dict.fromkeys(error.sentence for error in self.errors)) or [self.detail]


class Denied(Refusal):
    """You do not have permission to do this."""

    status = 403
    code = "denied"


class NotFound(Refusal):
    """Not found, or you do not have access."""

    status = 404
    code = "not_found"


class Conflict(Refusal):
    """The request conflicts with the current state."""

    status = 409
    code = "conflict"


class InvalidState(Conflict):
    """The job's state does not allow this action."""

    code = "invalid_state"


class Invalid(Refusal, ValueError):
    """The request is invalid; `errors` lists every invalid field."""

    status = 422
    code = "invalid"

    def under(self, prefix: str) -> Self:
        """The same error, its pointers prefixed by the location of the document in the user's input."""
        self.errors = tuple(
            FieldError(pointer=prefix + error.pointer, code=error.code, message=error.message) for error in self.errors
        )
        return self


def field_errors(failure: ValidationError, document: object, *, prefix: str = "") -> list[FieldError]:
    """Every place of `document` that pydantic refused, one entry per place."""
    return merged(
        FieldError(
            pointer=prefix + pointer_into(document, error["loc"], missing=error["type"] == "missing"),
            code=error["type"],
            message=field_message(error, error["input"]),
        )
        for error in failure.errors(include_url=False)
    )


def merged(errors: Iterable[FieldError]) -> list[FieldError]:
    """Joins errors of the same place: a union reports one error for each of its members."""
    places: dict[str, list[FieldError]] = {}
    for error in errors:
        places.setdefault(error.pointer, []).append(error)
    return [
        FieldError(
            pointer=pointer,
            code=alternatives[0].code,
            message=joined_messages([error.message for error in alternatives]),
        )
        for pointer, alternatives in places.items()
    ]


def pointer_into(document: object, loc: Sequence[int | str], *, missing: bool = False) -> str:
    """The JSON pointer of a pydantic location. A step that the document lacks names a union's member and is skipped."""
    pointer, here = "", document
    for index, step in enumerate(loc):
        known, below = _step_into(here, step)
        if known or (missing and index == len(loc) - 1):
            pointer += "/" + str(step).replace("~", "~0").replace("/", "~1")
            here = below
    return pointer


def value_in(document: object, loc: Sequence[int | str]) -> object:
    """The value of a pydantic location."""
    here = document
    for step in loc:
        _, here = _step_into(here, step)
    return here


def _step_into(node: object, step: int | str) -> tuple[bool, object]:
    if isinstance(node, dict):
        return (True, node[step]) if step in node else (False, node)
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return True, node[step]
    return False, node
