"""The promises of /api/v1 to programs, one per line: routes, inputs and outputs, fields and their types, values.

python -m tests.backend.upgrade.promises VERSION     writes this release's, once, at its release
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any, Final

Schema = Mapping[str, Any]
FOLDER: Final = Path(__file__).parent
_NAMES: Final = re.compile(r"#/components/schemas/(\w+)")
ASKED: Final = " must be given"


@cache
def present() -> frozenset[str]:
    document = rest_api()
    schemas = document["components"]["schemas"]
    return frozenset(_routes(document["paths"])) | set(_models(schemas, _asked_for(document["paths"], schemas)))


@cache
def rest_api() -> Schema:
    from backend.rest import api  # needs Django's settings

    schema: Schema = api.get_openapi_schema()
    return schema


def broken(before: Set[str], now: Set[str]) -> list[str]:
    """Promises that an older program relies on and that are missing, and inputs that are newly required."""
    known = {_holder(line) for line in before}
    required = {line for line in now - before if line.endswith(ASKED) and _holder(line) in known}
    return sorted({line for line in before - now if not line.endswith(ASKED)} | required)


def _holder(line: str) -> str:
    """The route or the model of a line."""
    return line.partition(" takes ")[0] if "/" in line else line.partition(".")[0]


def _routes(paths: Schema) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            route = f"{method.upper()} {path}"
            yield route
            for parameter in operation.get("parameters", []):
                yield (took := f"{route} takes {parameter['in']} {parameter['name']}")
                if parameter.get("required"):
                    yield took + ASKED
            for schema in _bodies(operation.get("requestBody", {})):
                yield f"{route} takes {_type(schema)}"
            for status, answer in operation["responses"].items():
                yield from (
                    f"{route} answers {status} {_type(schema)}" for schema in _bodies(answer) if int(status) < 400
                )


def _bodies(told: Schema) -> list[Schema]:
    return [content["schema"] for content in told.get("content", {}).values() if "schema" in content]


def _asked_for(paths: Schema, schemas: Schema) -> set[str]:
    """The models that a program sends, including nested ones."""
    operations = [operation for methods in paths.values() for operation in methods.values()]
    reached, left = set[str](), [_bodies(operation.get("requestBody", {})) for operation in operations]
    while left:
        for name in set(_NAMES.findall(str(left.pop()))) - reached:
            reached.add(name)
            left.append([schemas[name]])
    return reached


def _models(schemas: Schema, asked: set[str]) -> Iterator[str]:
    for name, schema in schemas.items():
        yield from (f"{name}. may be {value}" for value in schema.get("enum", []))
        for field, subschema in schema.get("properties", {}).items():
            yield f"{name}.{field} is {_type(subschema)}"
            if name in asked and field in schema.get("required", []):
                yield f"{name}.{field}{ASKED}"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    kinds = [_type(each) for word in ("anyOf", "oneOf", "allOf") for each in schema.get(word, [])]
    if kinds:
        return " or ".join(sorted(kinds))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")
    django.setup()
    (FOLDER / f"api-{sys.argv[1]}.txt").write_text("\n".join(sorted(present())) + "\n")
