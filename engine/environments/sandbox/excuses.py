"""Excused time of a call: waits for a core, for a free worker process, or for a new one to start.

A caller with its own deadline opens an `Excuse` for its thread and extends the deadline by the excused seconds.

Invariant: a span that is excused as a whole (`excused`) counts once; waits inside it add nothing.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import BoundedSemaphore


class Excuse:
    """Written by the thread that works, read by any other."""

    def __init__(self) -> None:
        self._closed_s = 0.0
        self._open_since: float | None = None

    def seconds(self) -> float:
        since = self._open_since
        return self._closed_s + (0.0 if since is None else time.monotonic() - since)

    def add(self, waited_s: float) -> None:
        if self._open_since is None:
            self._closed_s += waited_s

    @contextmanager
    def whole(self) -> Iterator[None]:
        if self._open_since is not None:
            yield
            return
        self._open_since = time.monotonic()
        try:
            yield
        finally:
            self._closed_s, self._open_since = self.seconds(), None


_of_this_thread: ContextVar[Excuse | None] = ContextVar("excuse", default=None)


@contextmanager
def excusing(excuse: Excuse) -> Iterator[None]:
    token = _of_this_thread.set(excuse)
    try:
        yield
    finally:
        _of_this_thread.reset(token)


@contextmanager
def excused() -> Iterator[None]:
    """Excuses the whole span."""
    excuse = _of_this_thread.get()
    if excuse is None:
        yield
        return
    with excuse.whole():
        yield


@contextmanager
def room_in(room: BoundedSemaphore) -> Iterator[None]:
    """Acquires without a timeout: the calls that hold the semaphore have one."""
    with excused():
        room.acquire()
    try:
        yield
    finally:
        room.release()


def excuse_wait(waited_s: float) -> None:
    excuse = _of_this_thread.get()
    if excuse is not None:
        excuse.add(waited_s)
