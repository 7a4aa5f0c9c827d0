"""Listening to event streams of a real uvicorn: fixtures `web_server` and `listen`."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.uvicorn_server import run_uvicorn

WITHIN_S = 60.0


@pytest.fixture
def web_server(transactional_db: None) -> Iterator[str]:
    from backend.asgi import application

    http = "backend.api.limits.connections:BoundedHttp"
    with run_uvicorn(application, http=http, timeout_graceful_shutdown=2) as url:
        yield f"{url}/api/v1"


class Stream:
    """A stream as a client reads it: frames as dictionaries, comments under "comment"."""

    def __init__(self, response: httpx.Response) -> None:
        self.response, self.status = response, response.status_code
        self._frames = self._parsed(response.iter_lines())

    @staticmethod
    def _parsed(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
        frame: dict[str, Any] = {}
        for line in lines:
            if line == "" and frame:
                yield frame
                frame = {}
            elif line.startswith(":"):
                frame["comment"] = line[1:].strip()
            elif line:
                name, _, value = line.partition(": ")
                frame[name] = json.loads(value) if name == "data" else value

    def next(self) -> dict[str, Any]:
        """The next frame that is neither a comment nor a retry hint."""
        return next(frame for frame in self._frames if "event" in frame)

    def rest(self) -> list[dict[str, Any]]:
        return [frame for frame in self._frames if "event" in frame]

    def any(self) -> dict[str, Any]:
        return next(self._frames)

    def problem(self) -> dict[str, Any]:
        self.response.read()
        document: dict[str, Any] = self.response.json()
        return document


@pytest.fixture
def listen(web_server: str, api: Any) -> Iterator[Callable[..., Stream]]:
    with ExitStack() as until_the_end:
        client = until_the_end.enter_context(httpx.Client(timeout=WITHIN_S))

        def open_stream(path: str, *, key: str | None = None, last: object = None, accept: str = "text/event-stream",
                        ) -> Stream:  # fmt: skip
            headers = {"Authorization": f"Bearer {key or api.key}", "Accept": accept}
            if last is not None:
                headers["Last-Event-ID"] = str(last)
            return Stream(until_the_end.enter_context(client.stream("GET", web_server + path, headers=headers)))

        yield open_stream
