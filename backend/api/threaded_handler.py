"""Django under ASGI, each request in one thread from its first middleware to its last.

    loop: read the body ──▶ thread: middleware, view, connection returned to its pool ──▶ loop: send the answer

Django's own handler starts a thread for each request and switches to it and back for every middleware that is not
asynchronous, sixteen times here; that was a third of a submission's cost (decisions.md). No view is asynchronous.
Streams are: their view runs like any other, and the event loop sends their chunks.

Invariants:
- no blocking call runs in the event loop;
- a body is read before the view runs, unless the view reads it itself (`streamed_body`);
- a thread that has answered holds no connection of the pool, even if the response is a stream that lasts an hour;
- a stream ends when its reader disconnects.
"""

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final

import django
from asgiref.sync import ThreadSensitiveContext
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.core.signals import request_started
from django.db import close_old_connections
from django.http.response import HttpResponseBase
from django.urls import get_resolver, set_script_prefix

from backend.api.streamed_body import StreamedBody, is_streamed

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Far more than the pool has connections: requests that wait for one do not block those without one (/healthz).
MOST_THREADS: Final = 40


def threaded_django() -> "ThreadedHandler":
    """Replaces `get_asgi_application()`."""
    django.setup(set_prefix=False)
    _ = get_resolver().url_patterns  # loads all routes, which takes seconds, before the first request
    return ThreadedHandler()


class ThreadedHandler(ASGIHandler):
    def __init__(self) -> None:
        BaseHandler.__init__(self)  # not ASGIHandler's, which loads the middleware for the event loop
        self.load_middleware(is_async=False)
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="request")

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]
        body: io.BytesIO | StreamedBody
        if is_streamed(scope):
            body = StreamedBody(receive, asyncio.get_running_loop())
        else:
            try:
                body = await _read_body(receive)
            except RequestAborted:
                return
        # A copy of the context: Django's values of one request must not leak into the thread's next one.
        answering = asyncio.get_running_loop().run_in_executor(
            self._threads, copy_context().run, self._answer, scope, body
        )
        response = await answering
        if response.streaming:
            await self._stream(response, receive, send)
        else:
            await self.send_response(response, send)

    def _answer(self, scope: Message, body: io.BytesIO | StreamedBody) -> HttpResponseBase:
        set_script_prefix(get_script_prefix(scope))
        request_started.send(sender=self.__class__, scope=scope)
        # Django only reads and closes it.
        request, refusal = self.create_request(scope, body)  # type: ignore[arg-type]
        response = refusal if request is None else self.get_response(request)
        assert response is not None, "Django returns a request or an error response"
        if isinstance(body, StreamedBody) and not body.is_read:
            response["Connection"] = "close"  # the unread rest of the body is still being sent
        if response.streaming:
            close_old_connections()  # else the thread would hold them until its next request
        else:
            response.close()  # its content stays; connections are returned
        return response

    async def _stream(self, response: HttpResponseBase, receive: Receive, send: Send) -> None:
        async with ThreadSensitiveContext():
            sending = asyncio.create_task(self.send_response(response, send))
            leaving = asyncio.create_task(self.listen_for_disconnect(receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, leaving):
                    task.cancel()
                outcomes = await asyncio.gather(sending, leaving, return_exceptions=True)
                await asyncio.get_running_loop().run_in_executor(self._threads, copy_context().run, response.close)
        failure = outcomes[0]
        if isinstance(failure, BaseException) and not isinstance(failure, asyncio.CancelledError):
            raise failure


async def _read_body(receive: Receive) -> io.BytesIO:
    """The whole body: `body_limit` has ensured that it is small. Raises `RequestAborted`."""
    body = io.BytesIO()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestAborted
        body.write(message.get("body", b""))
        if not message.get("more_body", False):
            body.seek(0)
            return body
