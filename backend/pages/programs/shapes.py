"""The shapes of requests and responses for the API reference: JSON Schema in words, with linked names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_KINDS: Final = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
_FORMATS: Final = {"date-time": "time", "date": "day", "binary": "bytes", "uri": "address"}
_BOUNDS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} names",
    "pattern": "matching {}",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a type's description; `shape`: the shape that it names and links to."""

    text: str
    shape: str | None = None


Described = tuple[tuple[tuple[bool, str], ...], ...]
"""Paragraphs of a text, each split into pieces with whether the piece is code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    name: str
    where: str
    """path, query or header; empty in a body."""
    parts: tuple[Part, ...]
    bounds: str
    about: Described
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    about: Described
    parts: tuple[Part, ...]
    """The type of a shape without fields."""
    fields: tuple[Field, ...]


def shapes_of(schemas: Mapping[str, Any]) -> Iterator[Shape]:
    for name, schema in sorted(schemas.items(), key=lambda named: named[0].lower()):
        required = schema.get("required", ())
        yield Shape(
            name=name,
            about=described(schema.get("description", "")),
            parts=() if schema.get("properties") else tuple(parts_of(schema)),
            fields=tuple(
                field_of(field, each, required=field in required)
                for field, each in schema.get("properties", {}).items()
            ),
        )


def field_of(name: str, schema: Mapping[str, Any], *, required: bool, where: str = "") -> Field:
    return Field(
        name=name,
        where=where,
        parts=tuple(parts_of(schema)),
        bounds=_bounds(schema),
        about=described(schema.get("description", "")),
        required=required,
    )


def described(text: str) -> Described:
    """Parses a docstring: a blank line ends a paragraph, backticks enclose code."""
    paragraphs = (" ".join(each.split()) for each in text.split("\n\n"))
    return tuple(
        tuple((at % 2 == 1, piece) for at, piece in enumerate(each.replace("``", "`").split("`")) if piece)
        for each in paragraphs
        if each
    )


def parts_of(schema: Mapping[str, Any]) -> list[Part]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return [Part(name, name)]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return _joined(schema[key], " or ")
    if "const" in schema or "enum" in schema:
        values = schema.get("enum") or [schema["const"]]
        return [Part(" or ".join(f"“{value}”" if isinstance(value, str) else str(value) for value in values))]
    if "prefixItems" in schema:
        return [Part("["), *_joined(schema["prefixItems"], ", "), Part("]")]
    if schema.get("type") == "array":
        return [Part("list of "), *parts_of(schema.get("items", {}))]
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return [Part("names with "), *parts_of(inner)] if isinstance(inner, dict) and inner else [Part("object")]
    return [Part(_FORMATS.get(schema.get("format", ""), _KINDS.get(schema.get("type", ""), _plain(schema))))]


def _plain(schema: Mapping[str, Any]) -> str:
    return "null" if schema.get("type") == "null" else "anything"


def _joined(schemas: list[Mapping[str, Any]], between: str) -> list[Part]:
    parts: list[Part] = []
    for schema in schemas:
        parts += [Part(between)] if parts else []
        parts += parts_of(schema)
    return parts


def _bounds(schema: Mapping[str, Any]) -> str:
    """The bounds of the one alternative that has some; null has none."""
    kinds = [schema, *schema.get("anyOf", ())]
    bounds = [_BOUNDS[key].format(each[key]) for each in kinds for key in _BOUNDS if key in each]
    if schema.get("default") not in (None, "", [], {}):
        bounds.append(f"default {schema['default']}" if not isinstance(schema["default"], dict) else "")
    return ", ".join(each for each in bounds if each)
