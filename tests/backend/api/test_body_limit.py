"""The body limit in front of Django: too large bodies are refused unread."""

import asyncio
import json
from typing import Any

import pytest

from backend.api.limits.body_limit import limit_bodies


class Client:
    """Plays one HTTP request against the wrapped application and counts the bytes received."""

    def __init__(self, chunks: list[bytes], *, announced: bool, max_bytes: int = 100) -> None:
        self.chunks = list(chunks)
        self.taken = 0
        self.sent: list[Any] = []
        self.seen: bytes | None = None
        length = str(sum(map(len, chunks))).encode()
        self.scope = {
            "type": "http",
            "path": "/api/v1/jobs",
            "headers": [(b"content-length", length)] if announced else [],
        }
        asyncio.run(self._play(max_bytes))

    async def _play(self, max_bytes: int) -> None:
        await limit_bodies(self._app, max_bytes=max_bytes)(self.scope, self._receive, self._send)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen = b""
        while True:
            message = await receive()
            self.seen += message["body"]
            if not message["more_body"]:
                break
        assert (await receive())["type"] == "http.disconnect"

    async def _receive(self) -> Any:
        if not self.chunks:
            return {"type": "http.disconnect"}
        body = self.chunks.pop(0)
        self.taken += len(body)
        return {"type": "http.request", "body": body, "more_body": bool(self.chunks)}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("announced", [True, False])
def test_what_fits_arrives_as_it_was_sent(announced: bool) -> None:
    client = Client([b"a" * 60, b"b" * 40], announced=announced)
    assert client.seen == b"a" * 60 + b"b" * 40 and not client.sent


def test_an_announced_length_is_enough_to_refuse() -> None:
    client = Client([b"a" * 101], announced=True)
    assert client.taken == 0 and client.seen is None
    start, body = client.sent
    document = json.loads(body["body"])
    assert (start["status"], document["code"], document["status"]) == (413, "too_large", 413)
    assert (b"x-request-id", document["request_id"].encode()) in start["headers"]


def test_a_chunked_body_is_read_up_to_the_limit_and_no_further() -> None:
    client = Client([b"a" * 40] * 1_000, announced=False)
    assert client.taken == 120 and client.seen is None
    assert client.sent[0]["status"] == 413


def test_other_traffic_passes_untouched() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError("no reader and no response here")

    async def play() -> None:
        await limit_bodies(app)({"type": "websocket"}, nothing, nothing)

    asyncio.run(play())
    assert seen == ["websocket"]
