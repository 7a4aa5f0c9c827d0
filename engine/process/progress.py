"""Progress inside long work: the working code names the piece of work and reports each unit of it; the heartbeat of the
process carries both.

    loader, hasher, trainer ──with working("load")──▶ LoopProgress of this thread's loop ◀── read by the heartbeat

Like a log, the functions are available everywhere and need no listener: without one they do nothing.

Invariants:
- one unit of work lies between two reports and takes seconds for any size of job; larger pieces are split;
- only a loop's own thread reports the work of that loop. A worker thread has its own progress: mixed with the loop's it
  would hide a stuck loop;
- processes that work for a loop (`add_counter`) act only on its orders, so their progress is the loop's.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.policy.progress import Piece, Pulse
from engine.process.opaque_work import OpaqueWork

_here = threading.local()


class LoopProgress:
    """The progress of one loop. Read by any thread."""

    def __init__(self) -> None:
        self._pulse = Pulse()
        self._guard = threading.Lock()
        self._workers: list[LoopProgress] = []
        self._counters: list[Callable[[], int]] = []
        self._opaque: OpaqueWork | None = None

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attaches this thread as the loop's thread."""
        self.attach_thread()
        try:
            yield
        finally:
            _here.progress = None

    def attach_thread(self) -> None:
        """Attaches this thread until it ends."""
        _here.progress = self
        self._opaque = OpaqueWork(threading.get_ident())

    def advance(self) -> None:
        with self._guard:
            self._pulse.advance()

    def begin(self, what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> None:
        with self._guard:
            self._pulse.begin(what, constant_s=constant_s, is_opaque=is_opaque)

    def end(self) -> None:
        with self._guard:
            self._pulse.end()

    @property
    def piece(self) -> Piece:
        with self._guard:
            self._pulse.advance(sum(count() for count in self._counters))
            if self._pulse.is_opaque and self._opaque is not None and self._opaque.has_moved():
                self._pulse.advance()
            return self._pulse.piece

    @property
    def worker_pieces(self) -> tuple[Piece, ...]:
        """The current work of this loop's worker threads, always in the same order."""
        return tuple(each.piece for each in self._workers)

    def add_worker(self, progress: "LoopProgress") -> None:
        self._workers.append(progress)

    def add_counter(self, count: Callable[[], int]) -> None:
        """`count` returns the units that a process has done for this loop since the last call."""
        with self._guard:
            self._counters.append(count)


def worker_progress() -> LoopProgress:
    """New progress for a worker thread of this thread's loop."""
    worker, loop = LoopProgress(), getattr(_here, "progress", None)
    if loop is not None:
        loop.add_worker(worker)
    return worker


def add_counter(count: Callable[[], int]) -> None:
    """Adds a counter to this thread's loop."""
    progress: LoopProgress | None = getattr(_here, "progress", None)
    if progress is not None:
        progress.add_counter(count)


@contextmanager
def working(what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> Iterator[None]:
    """A piece of work of one unit, or one that reports each unit. `constant_s`: a wait in it without progress, whose
    length does not depend on the job. `is_opaque`: foreign code, whose progress is observed from outside."""
    progress: LoopProgress | None = getattr(_here, "progress", None)
    if progress is None:
        yield
        return
    progress.begin(what, constant_s=constant_s, is_opaque=is_opaque)
    try:
        yield
    finally:
        progress.end()


def progress_reporter() -> Callable[[], None]:
    """`report_progress` of this thread's loop, to be called on a library's threads that work for it."""
    progress: LoopProgress | None = getattr(_here, "progress", None)
    return (lambda: None) if progress is None else progress.advance


def report_progress() -> None:
    """Reports one unit of this thread's loop: its own, or one of a part that it waits for."""
    progress: LoopProgress | None = getattr(_here, "progress", None)
    if progress is not None:
        progress.advance()


def report_layer_progress(x: Any) -> None:
    """LoopProgress at the start of a layer with this input, and again when the backward pass returns to it."""
    progress: LoopProgress | None = getattr(_here, "progress", None)
    if progress is not None:
        progress.advance()
        if x.requires_grad:
            x.register_hook(lambda _: progress.advance())  # on autograd's thread
