"""Messages for fields that pydantic refuses: what is accepted, then the value given.

    Input should be greater than or equal to 1        ──▶ must be at least 1; got 0
    Extra inputs are not permitted                    ──▶ unknown field: check its name, or remove it

Invariants:
- a message names no field: its reader has the pointer or the label;
- a message shows at most 40 characters of the value, and of an object or a list only its kind.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

NOT_GIVEN: Final = object()
_SHOWN: Final = 40
_KINDS: Final = {
    "a whole number": ("int_type", "int_parsing", "int_parsing_size", "int_from_float"),
    "a number": ("float_type", "float_parsing", "finite_number", "decimal_type", "decimal_parsing"),
    "true or false": ("bool_type", "bool_parsing"),
    "a string": ("string_type",),
    "a list": ("list_type", "tuple_type", "set_type", "frozen_set_type"),
    "an object": ("dict_type", "model_type", "model_attributes_type", "dataclass_type"),
    "null": ("none_required",),
    "a date such as 2026-01-31": ("date_type", "date_parsing", "date_from_datetime_parsing"),
    "a date and time such as 2026-01-31T12:00:00Z": (
        "datetime_type",
        "datetime_parsing",
        "datetime_from_date_parsing",
        "datetime_object_invalid",
    ),
}
_KIND_OF: Final = {code: words for words, codes in _KINDS.items() for code in codes}
_PATTERNS: Final = {
    r"\S": "must not be blank",
    r"^[a-z][a-z0-9_]{0,39}$": "must be lower-case letters, digits and _, starting with a letter",
    r"^[a-z0-9_]+(/[a-z0-9_]+)*$": "must be the name of a metric such as reward/mean",
    r"^[0-9a-f]{64}$": "must be a SHA-256 as 64 hex digits in lower case",
    r"^[0-9]{1,18}$": "must be `next_cursor` of the previous page",
    r"^[\x21-\x7e]{1,255}$": "must be 1 to 255 visible ASCII characters, without spaces",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$": "must be an id: letters, digits, dots, dashes and underscores",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$": "must be 1 to 100 letters, digits, dots, dashes and underscores",
    r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$": "must be 1 to 200 letters, digits, dots, dashes and underscores",
    r"^[A-Z]{3}$": "must be three capital letters (ISO 4217) such as EUR",
    r"^\d{1,15}(\.\d{1,6})?$": "must be a decimal as a string with at most 6 places, such as 250.5",
    r"^\d{1,12}(\.\d{1,12})?$": "must be a decimal as a string with at most 12 places, such as 0.0005",
    r"^[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f.]+(\.[^@\s\x00-\x1f.]+)+$": "must be an address such as ada@example.org",
    r"^(\*|job\.\*|job\.[a-z_]{1,40}|budget\.warned)$": "must be *, job.*, budget.warned or an event of a job",
}
"""Without an entry, the message shows the pattern itself."""
_BOUNDS: Final = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def field_message(error: Mapping[str, Any], given: object = NOT_GIVEN) -> str:
    """`error` is an entry of `ValidationError.errors()`. The message of a validator of ours is kept."""
    code, context = error["type"], error.get("ctx") or {}
    rule = _rule(code, context)
    if rule is None:
        return str(error["msg"]).removeprefix("Value error, ")
    if not rule.startswith("must "):
        return rule
    got = _shown(code, context, given)
    return f"{rule}; got {got}" if got else rule


def error_lines(failure: ValidationError, *, whole: str) -> list[str]:
    """For a terminal: one line per invalid place, such as `training.steps: must be at least 0; got -1`."""
    return [
        f"{'.'.join(map(str, error['loc'])) or whole}: {field_message(error, error['input'])}"
        for error in failure.errors(include_url=False)
    ]


def joined_messages(messages: Sequence[str]) -> str:
    """One message for a union's alternatives: "must be a number; got x", "must be null; got x" ──▶ "must be a number
    or null; got x"."""
    pairs = [_split(message) for message in dict.fromkeys(messages)]
    tails = {tail for _, tail in pairs}
    if len(tails) == 1 and all(rule.startswith("must be ") for rule, _ in pairs):
        *others, last = [rule.removeprefix("must be ") for rule, _ in pairs]
        return f"must be {', '.join(others)}{' or ' if others else ''}{last}{tails.pop()}"
    return "; or: ".join(rule + tail for rule, tail in pairs)


def plain_bound(bound: float) -> str:
    return f"{bound:,.0f}" if bound == int(bound) else f"{bound:g}"


def _rule(code: str, context: Mapping[str, Any]) -> str | None:
    if code in _KIND_OF:
        return f"must be {_KIND_OF[code]}"
    for name, words in _BOUNDS.items():
        if isinstance(bound := context.get(name), int | float):
            return f"must be {words} {plain_bound(bound)}"
    least, most = context.get("min_length"), context.get("max_length")
    match code:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return "unknown field: check its name, or remove it"
        case "literal_error" | "enum":
            expected = str(context.get("expected", ""))
            return f"must be {'one of ' if ' or ' in expected else ''}{expected}"
        case "string_pattern_mismatch":
            pattern = str(context.get("pattern", ""))
            return _PATTERNS.get(pattern) or f"must match {pattern}"
        case "string_too_short" | "too_short":
            return "must not be empty" if least == 1 else f"must have at least {least:,} {_unit(code, least)}"
        case "string_too_long" | "too_long":
            return f"must have at most {most:,} {_unit(code, most)}"
    return None


def _unit(code: str, num: int | None) -> str:
    if code.startswith("string"):
        return "character" if num == 1 else "characters"
    return "entry" if num == 1 else "entries"


def _shown(code: str, context: Mapping[str, Any], given: object) -> str:
    if code in ("string_too_long", "string_too_short"):
        return f"{len(given):,}" if isinstance(given, str) and given else ""
    if code in ("too_long", "too_short"):
        num = context.get("actual_length")
        return f"{num:,}" if num else ""
    match given:
        case None:
            return "null"
        case bool():
            return "true" if given else "false"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case "":
            return "an empty string"
        case str() | int() | float():
            text = str(given)
            return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return ""


def _split(message: str) -> tuple[str, str]:
    rule, separator, got = message.partition("; got ")
    return rule, separator + got
