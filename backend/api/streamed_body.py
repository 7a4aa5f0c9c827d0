"""A request's body that is read by whoever wants it, piece by piece, while it comes.

A part of an upload is megabytes: read before anybody knows who sends it, a stranger would fill the memory of the web
process. So a body of application/octet-stream is not read at all until a view asks for it.

Invariants:
- of a body no more is taken than the view reads, and never more than the limit;
- whoever sends nothing for a while, or leaves, has come to the body's end: the view sees that it is too short.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import TimeoutError as Late
from typing import Any, Final

from engine.spec.asset_manifest import PART_BYTES

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

MOST_BYTES: Final = PART_BYTES
MEDIA_TYPE: Final = b"application/octet-stream"
SILENT_S: Final = 30.0
"""Whoever sends holds one of the web process's threads meanwhile."""


def is_streamed(scope: Mapping[str, Any]) -> bool:
    return any(name == b"content-type" and value == MEDIA_TYPE for name, value in scope["headers"])


class StreamedBody:
    """As Django reads a body, from a thread. `loop` is the one that `receive` belongs to."""

    def __init__(self, receive: Receive, loop: asyncio.AbstractEventLoop) -> None:
        self._receive, self._loop = receive, loop
        self._held = b""
        self._num_taken = 0
        self.is_read = False

    def read(self, size: int = -1) -> bytes:
        wanted = MOST_BYTES if size < 0 else size
        while len(self._held) < wanted and not self.is_read:
            self._held += self._next()
        taken, self._held = self._held[:wanted], self._held[wanted:]
        return taken

    def close(self) -> None:
        """What was not read is nobody's."""

    def _next(self) -> bytes:
        coming = asyncio.run_coroutine_threadsafe(_received(self._receive), self._loop)
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


async def _received(receive: Receive) -> Mapping[str, Any]:
    return await receive()
