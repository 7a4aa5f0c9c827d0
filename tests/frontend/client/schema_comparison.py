"""Compares the client's types with the schemas of the server's OpenAPI document."""

import dataclasses
from collections.abc import Iterator
from datetime import date, datetime
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

SCALARS: dict[Any, tuple[str, str | None]] = {
    str: ("string", None), int: ("integer", None), float: ("number", None), bool: ("boolean", None),
    datetime: ("string", "date-time"), date: ("string", "date"),
}  # fmt: skip


class Comparison:
    """Yields each divergence of a name or type, and each value that may be null or left out on one side only."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = document.get("components", {}).get("schemas", {})
        self.compared: set[Any] = set()

    def of_record(self, kind: Any, schema: dict[str, Any]) -> Iterator[str]:
        self.compared.add(kind)
        hints = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            at, of_field = f"{kind.__name__}.{field.name}", schema.get("properties", {}).get(field.name)
            if field.name == "raw":
                continue
            if of_field is None:
                yield f"{at}: unknown to the server"
                continue
            is_optional = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
            if field.name not in schema.get("required", ()) and not is_optional:
                yield f"{at}: the server may leave it out"
            yield from self.of_value(hints[field.name], of_field, at=at)

    def of_value(self, kind: Any, schema: dict[str, Any], *, at: str) -> Iterator[str]:
        if kind is Any:
            return
        choices = [self._resolve(each) for each in schema.get("anyOf", [schema])]
        kinds = set(get_args(kind)) if isinstance(kind, UnionType) else {kind}
        if (NoneType in kinds) != any(each.get("type") == "null" for each in choices):
            yield f"{at}: {kind} and {schema} differ in null"
        choices, kinds = [each for each in choices if each.get("type") != "null"], kinds - {NoneType}
        if len(kinds) > 1:
            if {SCALARS[each][0] for each in kinds} != {each["type"] for each in choices}:
                yield f"{at}: {kind} is not {schema}"
            return
        [kind] = kinds
        for choice in choices:
            yield from self._of_one(kind, choice, at=at)

    def _of_one(self, kind: Any, schema: dict[str, Any], *, at: str) -> Iterator[str]:
        if dataclasses.is_dataclass(kind):
            yield from self.of_record(kind, schema)
        elif kind in SCALARS:
            if (schema.get("type"), schema.get("format")) != SCALARS[kind]:
                yield f"{at}: {kind} is not {schema}"
        elif schema.get("type") != {list: "array", dict: "object"}[get_origin(kind)]:
            yield f"{at}: {kind} is not {schema}"
        else:
            inner = schema.get("items", {}) if get_origin(kind) is list else schema.get("additionalProperties", {})
            yield from self.of_value(get_args(kind)[-1], inner, at=at)

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        resolved: dict[str, Any] = self._schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        return resolved
