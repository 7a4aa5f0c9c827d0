"""Decodes JSON documents into the dataclasses of `answers`.

Invariants:
- unknown fields are kept in `raw`, so the client works with newer servers;
- a missing field or a wrong type raises `Unreadable`: nothing is guessed.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime
from functools import cache
from typing import Any, TypeVar

from .errors import Unreadable

T = TypeVar("T")


def read(kind: type[T], document: object) -> T:
    try:
        found: T = _value(kind, document)
    except (TypeError, ValueError, KeyError) as problem:
        raise Unreadable(
            f"The server's response is not a valid {kind.__name__} ({problem}). Check that the URL is that of a "
            "Laminar server and that the client is up to date."
        ) from None
    return found


def _value(kind: Any, document: Any) -> Any:
    if kind is Any:
        return document
    if dataclasses.is_dataclass(kind):
        return _answer(kind, document)
    origin = typing.get_origin(kind)
    if origin is types.UnionType or origin is typing.Union:
        rest = [each for each in typing.get_args(kind) if each is not types.NoneType]
        if document is None:
            return None
        return _value(rest[0], document) if len(rest) == 1 else expected(document, tuple(rest))
    if origin is list:
        return [_value(typing.get_args(kind)[0], each) for each in expected(document, list)]
    if origin is dict:
        inner = typing.get_args(kind)[1]
        return {str(name): _value(inner, each) for name, each in expected(document, dict).items()}
    if kind in (datetime, date):
        return kind.fromisoformat(expected(document, str))
    if kind is float:
        return float(expected(document, (int, float)))
    return expected(document, kind)


def expected(document: Any, kind: Any) -> Any:
    if not isinstance(document, kind) or (isinstance(document, bool) and kind is not bool):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise TypeError(f"{document!r:.40} is not a {names}")
    return document


def _answer(kind: Any, document: Any) -> Any:
    known: Mapping[str, Any] = expected(document, dict)
    values = {}
    for field, hint in _fields(kind):
        if field.name == "raw":
            values["raw"] = known
        elif field.name in known or field.default is field.default_factory is dataclasses.MISSING:
            values[field.name] = _value(hint, known[field.name])
    return kind(**values)


@cache
def _fields(kind: Any) -> list[tuple[Any, Any]]:
    hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]
