"""ASGI middleware in front of Django, which would write a whole body to disk before any check.

Invariants:
- of a body that is too large nothing is read (if its length was announced) or at most the limit (if chunked), and the
  response is a problem+json 413;
- a body that its view reads itself (`streamed_body`) is not read here, and has the limit of that module.
"""

import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from backend.api.bodies import MAX_BODY_BYTES
from backend.api.problems import CONTENT_TYPE, TooLarge, problem_document
from backend.api.streamed_body import MOST_BYTES, is_streamed

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def limit_bodies(app: App, *, max_bytes: int = MAX_BODY_BYTES) -> App:
    """Wraps the HTTP side of the ASGI application."""

    async def limited(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        if is_streamed(scope):
            if _announced_length(scope) > MOST_BYTES:
                await _refuse(scope, send, MOST_BYTES)
            else:
                await app(scope, receive, send)
            return
        messages = None if _announced_length(scope) > max_bytes else await _read(receive, max_bytes)
        if messages is None:
            await _refuse(scope, send, max_bytes)
        else:
            await app(scope, _replay(messages, receive), send)

    return limited


def _announced_length(scope: Message) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def _read(receive: Receive, max_bytes: int) -> list[Message] | None:
    """All messages of the body; None as soon as they exceed the limit."""
    messages: list[Message] = []
    length = 0
    while True:
        message = await receive()
        messages.append(message)
        length += len(message.get("body", b""))
        if length > max_bytes:
            return None
        if message["type"] != "http.request" or not message.get("more_body", False):
            return messages


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """First the messages already read, then those to come (a disconnect)."""
    waiting = iter(messages)

    async def next_message() -> Message:
        return next(waiting, None) or await receive()

    return next_message


async def _refuse(scope: Message, send: Send, max_bytes: int) -> None:
    request_id = f"req_{secrets.token_hex(10)}"
    refusal = TooLarge(f"The body is larger than {max_bytes:,} bytes. Send a smaller one.")
    body = json.dumps(problem_document(refusal, instance=scope["path"], request_id=request_id)).encode()
    headers = [
        (b"content-type", CONTENT_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),  # the unread rest of the body is still being sent
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
