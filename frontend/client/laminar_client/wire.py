"""Requests and replies, without network.

A call is a *procedure*: a generator that yields effects (`Send`, `Pause`, …) and receives their results. Only
`transport` executes effects, once with and once without asyncio, so every call is written once.
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

from .errors import ApiError, error_of

T = TypeVar("T")
API = "/api/v1"
EVENT_STREAM = "text/event-stream"
LONGEST_RETRY_AFTER_S = 3_600.0
Query: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`repeatable`: idempotent, so safe to retry. `content`: bytes in place of a JSON body. A `path` with a scheme is a
    signed link: it gets no key."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: object = None
    content: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False

    @property
    def is_link(self) -> bool:
        return "://" in self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """`headers` have lower-case names. `body` of an opened stream is empty unless it is an error."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    def document(self) -> Any:
        try:
            return json.loads(self.body) if self.body else None
        except ValueError:
            return None

    def error(self) -> ApiError:
        document = self.document()
        problem: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        return error_of(self.status, problem, retry_after_s=_retry_after(self.headers.get("retry-after", "")))


class Lost(Exception):
    """There was no response. `transport` raises this into a procedure; the request may have had its effect."""


@dataclass(frozen=True, slots=True)
class Send:
    """-> Reply"""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """-> Reply, whose body then comes by `ReadChunk`"""

    request: Request


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """-> bytes of the last opened response; empty at its end"""


@dataclass(frozen=True, slots=True)
class Pause:
    """-> None"""

    seconds: float


@dataclass(frozen=True, slots=True)
class Now:
    """-> float: seconds of a monotonic clock"""


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """-> None; only in a stream: one of its items"""

    item: T


Effect: TypeAlias = Send | Open | ReadChunk | Pause | Now
Procedure: TypeAlias = Generator[Effect, Any, T]
Stream: TypeAlias = Generator[Effect | Emit[T], Any, None]


def path(*parts: str) -> str:
    """A path below the API's root; parts are escaped, so a caller cannot leave it."""
    return "".join(f"/{quote(part, safe=':')}" for part in parts)


def get(*parts: str, query: Query | None = None, headers: Mapping[str, str] | None = None) -> Request:
    return Request(
        method="GET", path=path(*parts), query=_flat(query or {}), headers=dict(headers or {}), repeatable=True
    )


def post(*parts: str, body: object = None, repeatable: bool = False, idempotency_key: str | None = None) -> Request:
    headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
    return Request(
        method="POST", path=path(*parts), body=body, headers=headers, repeatable=repeatable or bool(idempotency_key)
    )


def octets(*parts: str, content: bytes, query: Query) -> Request:
    """A PUT of bytes."""
    return Request(method="PUT", path=path(*parts), query=_flat(query), content=content, repeatable=True)


def patch(*parts: str, body: object, if_match: str | None = None) -> Request:
    return Request(method="PATCH", path=path(*parts), body=body, headers={"If-Match": if_match} if if_match else {})


def delete(*parts: str) -> Request:
    return Request(method="DELETE", path=path(*parts))


def sent(request: Request) -> Procedure[Reply]:
    reply: Reply = yield Send(request)
    return reply


def _flat(query: Query) -> tuple[tuple[str, str], ...]:
    """Lists become repeated parameters; None is omitted."""
    found: list[tuple[str, str]] = []
    for name, value in query.items():
        values = value if isinstance(value, list | tuple) else [value]
        found += [(name, _text(each)) for each in values if each is not None]
    return tuple(found)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _retry_after(text: str) -> float | None:
    return min(float(text), LONGEST_RETRY_AFTER_S) if text.isdecimal() else None
