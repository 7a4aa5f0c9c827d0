"""Runs procedures, with and without asyncio. All decisions are in the procedures.

Invariants:
- every network error is raised into the procedure as `Lost`;
- redirects are not followed, so the key goes to no other host; a signed link gets no key;
- open responses are closed however the procedure ends.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, Protocol, TypeVar

import httpx

from . import wire
from .retrying import Patience, persistent

T = TypeVar("T")
CONNECT_TIMEOUT_S = 10.0
STREAM_SILENCE_S = 45.0  # streams send a heartbeat every 15 s
CHUNK = 1 << 18
_JSON = "application/json, application/problem+json"


class Connection:
    """The server's URL and the key. `repr` omits the key."""

    def __init__(self, url: str, key: str, *, timeout_s: float, agent: str) -> None:
        self.url = url.rstrip("/")
        self.timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
        self._headers = {"Authorization": f"Bearer {key}", "User-Agent": agent}

    def __repr__(self) -> str:
        return f"Connection({self.url!r})"

    def arguments(self, request: wire.Request, *, is_stream: bool) -> dict[str, Any]:
        """Arguments for httpx's build_request."""
        silence = httpx.Timeout(self.timeout.read, connect=self.timeout.connect, read=STREAM_SILENCE_S)
        shared: dict[str, Any] = {"method": request.method, "timeout": silence if is_stream else self.timeout}
        if request.is_link:
            return shared | {"url": request.path, "headers": {"User-Agent": self._headers["User-Agent"]}}
        body: dict[str, Any] = {} if request.body is None else {"json": request.body}
        typed = {}
        if request.content is not None:
            body, typed = {"content": request.content}, {"Content-Type": "application/octet-stream"}
        url = f"{self.url}{wire.API}{request.path}"
        headers = {"Accept": _JSON, **self._headers, **typed, **request.headers}
        return shared | body | {"url": url, "params": list(request.query), "headers": headers}


def _reply(response: httpx.Response, body: bytes) -> wire.Reply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return wire.Reply(status=response.status_code, headers=headers, body=body)


def _lost(error: Exception, url: str) -> wire.Lost:
    said = str(error) or type(error).__name__
    return wire.Lost(f"No response from {url}: {said}")


class Carrier(Protocol):
    """The interface that a namespace of calls needs: run a procedure, or iterate a stream."""

    def run(self, procedure: wire.Procedure[Any]) -> Any: ...
    def iterate(self, stream: wire.Stream[Any]) -> Any: ...


class BlockingCarrier:
    def __init__(self, connection: Connection, http: httpx.Client, patience: Patience) -> None:
        self._connection, self._http, self._patience = connection, http, patience

    def run(self, procedure: wire.Procedure[T]) -> T:
        course = self._course(procedure)
        while True:
            try:
                next(course)
            except StopIteration as done:
                result: T = done.value
                return result

    def iterate(self, stream: wire.Stream[T]) -> Iterator[T]:
        yield from self._course(stream)

    def _course(self, procedure: Any) -> Generator[Any, None, Any]:
        """Yields the procedure's emitted values; its result is the StopIteration's value."""
        doing = _Blocking(self._connection, self._http)
        stubborn = persistent(procedure, self._patience)
        outcome: Any = None
        lost: wire.Lost | None = None
        try:
            while True:
                effect = stubborn.throw(lost) if lost is not None else stubborn.send(outcome)
                outcome, lost = None, None
                if isinstance(effect, wire.Emit):
                    yield effect.item
                    continue
                try:
                    outcome = doing.carry_out(effect)
                except wire.Lost as found:
                    lost = found
        except StopIteration as done:
            return done.value
        finally:
            doing.close()
            stubborn.close()
            procedure.close()


class _Blocking:
    def __init__(self, connection: Connection, http: httpx.Client) -> None:
        self._connection, self._http = connection, http
        self._opened: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def carry_out(self, effect: wire.Effect) -> Any:
        match effect:
            case wire.Now():
                return time.monotonic()
            case wire.Pause():
                return time.sleep(effect.seconds)
            case _:
                try:
                    return self._on_the_network(effect)
                except (httpx.TransportError, httpx.StreamError, httpx.InvalidURL) as error:
                    raise _lost(error, self._connection.url) from None

    def _on_the_network(self, effect: wire.Effect) -> Any:
        match effect:
            case wire.Send(request):
                response = self._http.send(self._built(request, is_stream=False))
                return _reply(response, response.content)
            case wire.Open(request):
                self.close()
                self._opened = self._http.send(self._built(request, is_stream=True), stream=True)
                self._chunks = self._opened.iter_bytes()
                body = b"" if self._opened.is_success else self._opened.read()
                return _reply(self._opened, body)
            case _:
                return next(self._chunks, b"")

    def _built(self, request: wire.Request, *, is_stream: bool) -> httpx.Request:
        return self._http.build_request(**self._connection.arguments(request, is_stream=is_stream))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened, self._chunks = None, iter(())


class AwaitingCarrier:
    def __init__(self, connection: Connection, http: httpx.AsyncClient, patience: Patience) -> None:
        self._connection, self._http, self._patience = connection, http, patience

    async def run(self, procedure: wire.Procedure[T]) -> T:
        result: list[T] = []
        async for _ in self._course(procedure, result):
            pass
        return result[0]

    async def iterate(self, stream: wire.Stream[T]) -> AsyncIterator[T]:
        async for item in self._course(stream, []):
            yield item

    async def _course(self, procedure: Any, result: list[Any]) -> AsyncIterator[Any]:
        """Yields the procedure's emitted values; its result goes into `result`."""
        doing = _Awaiting(self._connection, self._http)
        stubborn = persistent(procedure, self._patience)
        outcome: Any = None
        lost: wire.Lost | None = None
        try:
            while True:
                try:
                    effect = stubborn.throw(lost) if lost is not None else stubborn.send(outcome)
                except StopIteration as done:
                    result.append(done.value)
                    return
                outcome, lost = None, None
                if isinstance(effect, wire.Emit):
                    yield effect.item
                    continue
                try:
                    outcome = await doing.carry_out(effect)
                except wire.Lost as found:
                    lost = found
        finally:
            await doing.close()
            stubborn.close()
            procedure.close()


class _Awaiting:
    def __init__(self, connection: Connection, http: httpx.AsyncClient) -> None:
        self._connection, self._http = connection, http
        self._opened: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def carry_out(self, effect: wire.Effect) -> Any:
        match effect:
            case wire.Now():
                return time.monotonic()
            case wire.Pause():
                return await asyncio.sleep(effect.seconds)
            case _:
                try:
                    return await self._on_the_network(effect)
                except (httpx.TransportError, httpx.StreamError, httpx.InvalidURL) as error:
                    raise _lost(error, self._connection.url) from None

    async def _on_the_network(self, effect: wire.Effect) -> Any:
        match effect:
            case wire.Send(request):
                response = await self._http.send(self._built(request, is_stream=False))
                return _reply(response, response.content)
            case wire.Open(request):
                await self.close()
                self._opened = await self._http.send(self._built(request, is_stream=True), stream=True)
                self._chunks = self._opened.aiter_bytes()
                body = b"" if self._opened.is_success else await self._opened.aread()
                return _reply(self._opened, body)
            case _:
                return b"" if self._chunks is None else await anext(self._chunks, b"")

    def _built(self, request: wire.Request, *, is_stream: bool) -> httpx.Request:
        return self._http.build_request(**self._connection.arguments(request, is_stream=is_stream))

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()
            self._opened, self._chunks = None, None
