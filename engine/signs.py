"""Signs of life from inside long work: the working code names the piece and signs for each unit of it, and the
heartbeat of the process reports both.

    loader, hasher, trainer ──with at_work("load")──▶ Signs of this thread's loop ◀── read by the heartbeat

Like a log, it is at hand everywhere and needs no listener: without one, nothing happens.

Invariants:
- between two signs lies one unit of work, which takes seconds whatever the size of the job; larger pieces are cut;
- only a loop's own thread says what that loop is in. A thread that works beside the loop has signs of its own: among
  the loop's they would hide that the loop stands still;
- processes that work for a loop (`add_counter`) move only on its orders, so their signs are the loop's.
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
        """This thread is the loop's."""
        self.hear_this_thread()
        try:
            yield
        finally:
            _here.signs = None

    def hear_this_thread(self) -> None:
        """Until it ends."""
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
        """What the threads are at that work beside this loop, each always in the same place."""
        return tuple(signs.piece for signs in self._beside)

    def add_beside(self, signs: "Signs") -> None:
        self._beside.append(signs)

    def add_counter(self, count: Callable[[], int]) -> None:
        """`count`: the units that a process has done for this loop since the last call."""
        with self._guard:
            self._counters.append(count)


def signs_beside() -> Signs:
    """For one thread that will work beside this one's loop."""
    beside, signs = Signs(), getattr(_here, "signs", None)
    if signs is not None:
        signs.add_beside(beside)
    return beside


def add_counter(count: Callable[[], int]) -> None:
    """To this thread's loop."""
    signs: Signs | None = getattr(_here, "signs", None)
    if signs is not None:
        signs.add_counter(count)


@contextmanager
def at_work(what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> Iterator[None]:
    """A piece of work of one unit, or one that signs for each unit. `constant_s`: a wait in it that shows no progress
    and that no job makes longer. `is_opaque`: other people's code, whose progress is looked for from outside."""
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
    """`still_here` of this thread's loop, for threads that a library works for it on."""
    signs: Signs | None = getattr(_here, "signs", None)
    return (lambda: None) if signs is None else signs.sign


def still_here() -> None:
    """Signs once for the loop of this thread: a unit of work is done, or a part that the loop waits for has signed."""
    signs: Signs | None = getattr(_here, "signs", None)
    if signs is not None:
        signs.sign()


def sign_through(x: Any) -> None:
    """A layer begins with this tensor: a sign now, and one when the backward pass has come back to it."""
    signs: Signs | None = getattr(_here, "signs", None)
    if signs is not None:
        signs.sign()
        if x.requires_grad:
            x.register_hook(lambda _: signs.sign())  # on autograd's thread
