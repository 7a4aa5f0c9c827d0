"""Signs of life from inside long work: the working code names the piece and signs for each unit of it; the heartbeat of
the process reports both.

    loader, hasher, trainer ──with at_work("load")──▶ Signs of this thread's loop ◀── read by the heartbeat

Like a log, the functions are available everywhere and need no listener: without one they do nothing.

Invariants:
- one unit of work lies between two signs and takes seconds for any size of job; larger pieces are split;
- only a loop's own thread reports the work of that loop. A worker thread has its own signs: mixed with the loop's they
  would hide a stuck loop;
- processes that work for a loop (`add_counter`) act only on its orders, so their signs are the loop's.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.opaque_work import OpaqueWork
from engine.policy.progress import Piece, Pulse

_here = threading.local()


class Signs:
    """The signs of one loop. Read by any thread."""

    def __init__(self) -> None:
        self._pulse = Pulse()
        self._guard = threading.Lock()
        self._beside: list[Signs] = []
        self._counters: list[Callable[[], int]] = []
        self._opaque: OpaqueWork | None = None

    @contextmanager
    def heard_here(self) -> Iterator[None]:
        """Attaches this thread as the loop's thread."""
        self.hear_this_thread()
        try:
            yield
        finally:
            _here.signs = None

    def hear_this_thread(self) -> None:
        """Attaches this thread until it ends."""
        _here.signs = self
        self._opaque = OpaqueWork(threading.get_ident())

    def sign(self) -> None:
        with self._guard:
            self._pulse.sign()

    def begin(self, what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> None:
        with self._guard:
            self._pulse.begin(what, constant_s=constant_s, is_opaque=is_opaque)

    def end(self) -> None:
        with self._guard:
            self._pulse.end()

    @property
    def piece(self) -> Piece:
        with self._guard:
            self._pulse.sign(sum(count() for count in self._counters))
            if self._pulse.is_opaque and self._opaque is not None and self._opaque.has_moved():
                self._pulse.sign()
            return self._pulse.piece

    @property
    def beside(self) -> tuple[Piece, ...]:
        """The current work of this loop's worker threads, always in the same order."""
        return tuple(signs.piece for signs in self._beside)

    def add_worker(self, signs: "Signs") -> None:
        self._beside.append(signs)

    def add_counter(self, count: Callable[[], int]) -> None:
        """`count` returns the units that a process has done for this loop since the last call."""
        with self._guard:
            self._counters.append(count)


def signs_beside() -> Signs:
    """New signs for a worker thread of this thread's loop."""
    beside, signs = Signs(), getattr(_here, "signs", None)
    if signs is not None:
        signs.add_worker(beside)
    return beside


def add_counter(count: Callable[[], int]) -> None:
    """Adds a counter to this thread's loop."""
    signs: Signs | None = getattr(_here, "signs", None)
    if signs is not None:
        signs.add_counter(count)


@contextmanager
def at_work(what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> Iterator[None]:
    """A piece of work of one unit, or one that signs for each unit. `constant_s`: a wait in it without progress, whose
    length does not depend on the job. `is_opaque`: foreign code, whose progress is observed from outside."""
    signs: Signs | None = getattr(_here, "signs", None)
    if signs is None:
        yield
        return
    signs.begin(what, constant_s=constant_s, is_opaque=is_opaque)
    try:
        yield
    finally:
        signs.end()


def sign_from_anywhere() -> Callable[[], None]:
    """`still_here` of this thread's loop, to be called on a library's threads that work for it."""
    signs: Signs | None = getattr(_here, "signs", None)
    return (lambda: None) if signs is None else signs.sign


def still_here() -> None:
    """Signs once for this thread's loop: a unit of work is done, or a part that the loop waits for has signed."""
    signs: Signs | None = getattr(_here, "signs", None)
    if signs is not None:
        signs.sign()


def sign_through(x: Any) -> None:
    """Signs at the start of a layer with this input, and again when the backward pass returns to it."""
    signs: Signs | None = getattr(_here, "signs", None)
    if signs is not None:
        signs.sign()
        if x.requires_grad:
            x.register_hook(lambda _: signs.sign())  # on autograd's thread
