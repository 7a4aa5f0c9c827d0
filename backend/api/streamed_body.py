"""A request body that the view reads piece by piece as it arrives.

A part of an upload is megabytes: reading it before authentication would let a stranger fill the web process' memory. A
body of application/octet-stream is therefore not read until a view reads it.

Invariants:
- no more of a body is received than the view reads, and never more than the limit;
- a sender that pauses too long or disconnects ends the body: the view sees that it is too short.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import TimeoutError as Late
from typing import Any, Final

from engine.spec.assets.asset_manifest import PART_BYTES

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

MOST_BYTES: Final = PART_BYTES
MEDIA_TYPE: Final = b"application/octet-stream"
SILENT_S: Final = 30.0
"""The sender occupies one of the web process' threads meanwhile."""


def is_streamed(scope: Mapping[str, Any]) -> bool:
    return any(name == b"content-type" and value == MEDIA_TYPE for name, value in scope["headers"])


class StreamedBody:
    """The file interface that Django reads a body by, from a thread. `loop` is the event loop of `receive`."""

    def __init__(self, receive: Receive, loop: asyncio.AbstractEventLoop) -> None:
        self._receive, self._loop = receive, loop
        self._held = b""
        self._num_taken = 0
        self.is_read = False

    def read(self, size: int = -1) -> bytes:
        num_bytes = MOST_BYTES if size < 0 else size
        while len(self._held) < num_bytes and not self.is_read:
            self._held += self._next()
        taken, self._held = self._held[:num_bytes], self._held[num_bytes:]
        return taken

    def close(self) -> None:
        """No-op: the unread rest is dropped with the connection."""

    def _next(self) -> bytes:
        coming = asyncio.run_coroutine_threadsafe(_receive_message(self._receive), self._loop)
        try:
            message = coming.result(SILENT_S)
        except Late:
            coming.cancel()
            message = {"type": "http.disconnect"}
        piece: bytes = message.get("body", b"")
        self._num_taken += len(piece)
        if self._num_taken > MOST_BYTES:
            piece, message = b"", {}
        self.is_read = not message.get("more_body", False)
        return piece


async def _receive_message(receive: Receive) -> Mapping[str, Any]:
    return await receive()
