"""Responses with one object, and paginated lists."""

from collections.abc import Mapping
from typing import Any, TypeVar

from ..decoding import expected, read
from ..errors import Unreadable
from ..wire import Emit, Procedure, Query, Request, Stream, get, sent

T = TypeVar("T")
PAGE = 100


def answer(kind: type[T], request: Request) -> Procedure[T]:
    reply = yield from sent(request)
    return read(kind, reply.document())


def nothing(request: Request) -> Procedure[None]:
    yield from sent(request)


def whole_list(kind: type[T], request: Request) -> Procedure[list[T]]:
    """A list that the server returns in one page."""
    reply = yield from sent(request)
    return [read(kind, each) for each in _page(reply.document())["data"]]


def each_of(kind: type[T], *parts: str, query: Query, most: int | None = None) -> Stream[T]:
    """Fetches pages lazily, at most `most` rows."""
    cursor: str | None = None
    given = 0
    while True:
        limit = PAGE if most is None else max(1, min(PAGE, most - given))
        reply = yield from sent(get(*parts, query={**query, "cursor": cursor, "limit": limit}))
        page = _page(reply.document())
        for document in page["data"]:
            if most is not None and given >= most:
                return
            yield Emit(read(kind, document))
            given += 1
        following = page.get("next_cursor")
        if following is None or following == cursor or (most is not None and given >= most):
            return
        cursor = str(following)


def _page(document: Any) -> Mapping[str, Any]:
    try:
        expected(expected(document, dict)["data"], list)
    except (TypeError, KeyError):
        raise Unreadable("The server's response is not a list that this client can read.") from None
    page: Mapping[str, Any] = document
    return page
