"""Connections of the web process: `uvicorn --http backend.api.limits.connections:BoundedHttp`.

uvicorn itself waits for a request forever and accepts any number of headers, so a stranger could use up the process'
connections or memory by sending nothing, or too much, and never a complete request.

    opened ──head_within_s──▶ head read ──body_within_s for each piece──▶ body read ──▶ answered ──uvicorn──▶ closed

Invariants:
- a head arrives within its time and its size, or the connection is closed; a body may be long, but must keep arriving;
- time in which the process itself does not read (its consumer is slow) is not counted;
- a running response, stream or socket is left alone.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES: Final = 64 * 1024  # uvicorn's own bound where its parser is in Python
PIECE_BYTES: Final = 64 * 1024


class BoundedHttp(HttpToolsProtocol):
    head_within_s = 10.0
    body_within_s = 30.0
    """For each piece: 2 kB a second, which a phone on a train reaches."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._awaits_head = True
        self._num_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._set_deadline(self.head_within_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaits_head:
            self._num_bytes += len(data)
        super().data_received(data)
        if self._awaits_head and self._num_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers of this request are too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._awaits_head:  # another request on the same connection
            self._awaits_head, self._num_bytes = True, 0
            self._set_deadline(self.head_within_s)

    def on_headers_complete(self) -> None:
        self._awaits_head, self._num_bytes = False, 0
        self._set_deadline(self.body_within_s)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_bytes += len(body)
        if self._num_bytes >= PIECE_BYTES:
            self._num_bytes = 0
            self._set_deadline(self.body_within_s)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._set_deadline(None)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._set_deadline(None)
        super().handle_websocket_upgrade()

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        if self.flow.read_paused:
            self._set_deadline(self.body_within_s)
        else:
            self.transport.close()
