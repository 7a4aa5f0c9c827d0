"""Reading a request's body: JSON, strictly, and no more of it than we asked for.

Invariants:
- only JSON as the standard has it is taken: no NaN, no Infinity, no name twice in one object;
- a body is refused for its size before it is parsed (and before it is read, by `body_limit`, under ASGI).
"""

import json
from typing import Any, NoReturn, cast

from django.http import HttpRequest
from ninja.parser import Parser

from backend.api.problems import Malformed, TooLarge, UnsupportedMediaType

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
            raise TooLarge(f"The body is larger than {MAX_BODY_BYTES} bytes.")
        document = parse_json(request.body)
        request.META[_PARSED] = document
        return cast(dict[str, Any], document)  # ninja's type; the route's model refuses what is not an object


def parsed_body(request: HttpRequest) -> object:
    """The document as it was sent, to point into."""
    return request.META.get(_PARSED)


def parse_json(body: bytes) -> object:
    try:
        document = json.loads(body.decode(), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise Malformed(f"The body nests deeper than {MAX_DEPTH} levels.", code="too_deep") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both
        raise Malformed(f"The body is not JSON: {error}.") from error
    _refuse_depth(document)
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice in one object")
    return found


def _refuse_depth(document: object) -> None:
    layer: list[object] = [document]
    for _ in range(MAX_DEPTH):
        layer = [child for node in layer for child in _children(node)]
        if not layer:
            return
    raise Malformed(f"The body nests deeper than {MAX_DEPTH} levels.", code="too_deep")


def _children(node: object) -> list[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
