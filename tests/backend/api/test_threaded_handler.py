"""Requests under ASGI: in one thread from end to end, without leaks between requests."""

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from django.db import connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import path

from backend.api.middleware import RequestIdMiddleware
from backend.api.request_context import current_request
from backend.api.threaded_handler import ThreadedHandler
from tests.uvicorn_server import run_uvicorn
from tests.waiting import eventually

urlpatterns: list[Any] = []
seen: list[Any] = []


def _database_is_used() -> None:
    with connection.cursor() as db:
        db.execute("SELECT 1")


class NotesItsThread(RequestIdMiddleware):
    """Before and after the view, with a query in between."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        seen.append((threading.get_ident(), current_request.get().request_id))
        response = super().__call__(request)
        seen.append((threading.get_ident(), current_request.get().request_id))
        return response


def plain(request: HttpRequest) -> HttpResponse:
    _database_is_used()
    seen.append((threading.get_ident(), current_request.get().request_id))
    return HttpResponse(request.body)


def broken(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("a bug of ours")


def endless(request: HttpRequest) -> StreamingHttpResponse:
    _database_is_used()

    async def tell() -> AsyncIterator[bytes]:
        import asyncio

        try:
            while True:
                yield b"still here\n"
                await asyncio.sleep(0.01)
        finally:
            _ended.set()

    return StreamingHttpResponse(tell())  # type: ignore[return-value,unused-ignore]


_ended = threading.Event()
urlpatterns += [path("plain", plain), path("broken", broken), path("endless", endless)]


@pytest.fixture
def url(transactional_db: None, settings: Any) -> Iterator[str]:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [f"{__name__}.NotesItsThread"]
    seen.clear()
    _ended.clear()
    with run_uvicorn(ThreadedHandler(), log_level="error", timeout_graceful_shutdown=2) as base_url:
        yield base_url


def connections_out() -> int:
    stats = connection.pool.get_stats()  # type: ignore[attr-defined]
    return int(stats["pool_size"] - stats["pool_available"])


def test_a_request_stays_in_its_thread(url: str) -> None:
    assert httpx.post(f"{url}/plain", content=b"sent").text == "sent"
    threads = {thread for thread, _ in seen}
    assert len(seen) == 3 and len(threads) == 1 and threads != {threading.get_ident()}


def test_nothing_of_a_request_is_left_in_its_thread(url: str) -> None:
    for number in range(4):  # one after the other: the same thread serves all
        httpx.get(f"{url}/plain", headers={"X-Request-Id": f"request-{number}"})
    assert len({thread for thread, _ in seen}) == 1
    before, inside, after = [[name for _, name in seen][at::3] for at in range(3)]
    assert inside == [f"request-{number}" for number in range(4)]
    assert before == after == [""] * 4


def test_finished_request_holds_no_connection(url: str) -> None:
    with httpx.Client() as client, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: client.get(f"{url}/plain").raise_for_status(), range(40)))
    connection.close()
    eventually(connections_out, "every connection is returned", until=lambda number: number == 0)


def test_stream_holds_no_connection_and_ends_with_its_reader(url: str) -> None:
    connection.close()
    with httpx.stream("GET", f"{url}/endless") as stream:
        lines = stream.iter_lines()  # referenced, or it would disconnect
        assert next(lines) == "still here"
        eventually(connections_out, "every connection is returned", until=lambda number: number == 0)
        assert not _ended.is_set()
    assert _ended.wait(60), "its reader has disconnected"
    assert httpx.get(f"{url}/plain").status_code == 200


@pytest.mark.long
def test_exception_is_answered_and_its_thread_survives(url: str) -> None:
    for _ in range(50):  # more than there are threads
        assert httpx.get(f"{url}/broken").status_code == 500
    assert httpx.get(f"{url}/plain").status_code == 200
