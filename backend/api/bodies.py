"""Parsing of request bodies: strict JSON of bounded size.

Invariants:
- only standard JSON is accepted: no NaN, no Infinity, no duplicate name in an object;
- no string in it has a NUL or half a surrogate pair, whatever its schema: Postgres can store neither;
- a body is checked for its size before it is parsed (and before it is read, by `body_limit`, under ASGI).
"""

import json
from collections.abc import Iterator
from typing import Any, NoReturn, cast

from django.http import HttpRequest
from ninja.parser import Parser

from backend.api.problems import Malformed, TooLarge, UnsupportedMediaType
from backend.borders.types import is_storable
from backend.errors import FieldError, Invalid

MAX_BODY_BYTES = 1024 * 1024  # a spec is kilobytes, a batch of facts stays under this too
MAX_DEPTH = 32  # a spec is four deep
_PARSED = "laminar.body"


class JsonParser(Parser):
    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        if request.content_type != "application/json":
            raise UnsupportedMediaType()
        if (request.content_params or {}).get("charset", "utf-8").lower() not in {"utf-8", "utf8"}:
            raise UnsupportedMediaType()
        if len(request.body) > MAX_BODY_BYTES:
            raise TooLarge(f"The body is larger than {MAX_BODY_BYTES:,} bytes. Send a smaller one.")
        document = parse_json(request.body)
        request.META[_PARSED] = document
        return cast(dict[str, Any], document)  # ninja's type; the route's model refuses anything but an object


def parsed_body(request: HttpRequest) -> object:
    """The document as sent, to resolve JSON pointers in."""
    return request.META.get(_PARSED)


def parse_json(body: bytes) -> object:
    try:
        document = json.loads(body.decode(), parse_constant=_refuse_constant, object_pairs_hook=_build_object)
    except RecursionError:
        raise Malformed(f"The body nests deeper than {MAX_DEPTH} levels.", code="too_deep") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both
        raise Malformed(f"The body is not JSON: {error}.") from error
    _refuse_depth(document)
    if b"\\u" in body:  # the only way to write them in JSON
        _refuse_unstorable(document)
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has a duplicate name")
    return members


def _refuse_depth(document: object) -> None:
    layer: list[object] = [document]
    for _ in range(MAX_DEPTH):
        layer = [child for node in layer for child in _children_of(node)]
        if not layer:
            return
    raise Malformed(f"The body nests deeper than {MAX_DEPTH} levels.", code="too_deep")


def _refuse_unstorable(document: object) -> None:
    errors = [
        FieldError(pointer=pointer, code="text", message="must not contain the character NUL or an unpaired surrogate")
        for pointer, text in _walk_texts(document, "")
        if not is_storable(text)
    ]
    if errors:
        raise Invalid(errors=errors)


def _walk_texts(node: object, pointer: str) -> Iterator[tuple[str, str]]:
    """Every string with its pointer; a member's name has the pointer of its object."""
    if isinstance(node, str):
        yield pointer, node
    elif isinstance(node, dict):
        for name, child in node.items():
            yield pointer, name
            yield from _walk_texts(child, f"{pointer}/{name}" if is_storable(name) else pointer)
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from _walk_texts(child, f"{pointer}/{index}")


def _children_of(node: object) -> list[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
