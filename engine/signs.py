"""Signs of life from inside long work: whoever works says what it is at and how much of it, and the heartbeat of the
process carries that on.

    loader, hasher, trainer ──with at_work("load", num_bytes=…)──▶ Signs of this thread's loop ◀── read by the heartbeat

Like a log, it is at hand everywhere and asks for no listener: without one, nothing happens.

Invariant: what a loop is at, only its own thread says. A thread that works beside it has signs of its own, which tell
that the work goes on: among the loop's they would hide that it stands still.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.policy.pace import Piece, Pulse
from engine.spec.fit.durations.slowest import estimate_s

_here = threading.local()


class Signs:
    """The signs of one loop. Read by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pulse = Pulse(clock())
        self._guard = threading.Lock()
        self._beside: list[Signs] = []

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

    def sign(self) -> None:
        with self._guard:
            self._pulse.sign(self._clock())

    def begin(self, what: str, expects_s: float, *, constant_s: float = 0.0) -> None:
        with self._guard:
            self._pulse.begin(what, expects_s, self._clock(), constant_s=constant_s)

    def end(self) -> None:
        with self._guard:
            self._pulse.end(self._clock())

    @property
    def piece(self) -> Piece:
        with self._guard:
            return self._pulse.piece

    @property
    def beside(self) -> tuple[Piece, ...]:
        """What the threads are at that work beside this loop, each always in the same place."""
        return tuple(signs.piece for signs in self._beside)

    def add_beside(self, signs: "Signs") -> None:
        self._beside.append(signs)


def signs_beside() -> Signs:
    """For one thread that will work beside this one's loop."""
    beside, signs = Signs(), getattr(_here, "signs", None)
    if signs is not None:
        signs.add_beside(beside)
    return beside


@contextmanager
def at_work(
    what: str, *, num_bytes: float = 0.0, num_flops: float = 0.0, device: str = "cpu", constant_s: float = 0.0
) -> Iterator[None]:
    """A piece of work, at most this much of it without another sign of life. `constant_s`: what no job makes longer."""
    signs: Signs | None = getattr(_here, "signs", None)
    if signs is None:
        yield
        return
    expects_s = estimate_s(num_bytes=num_bytes, num_flops=num_flops, device=device)
    signs.begin(what, expects_s, constant_s=constant_s)
    try:
        yield
    finally:
        signs.end()


def sign_from_anywhere() -> Callable[[], None]:
    """`still_here` of this thread's loop, for threads that a library works for it on."""
    signs: Signs | None = getattr(_here, "signs", None)
    return (lambda: None) if signs is None else signs.sign


def still_here() -> None:
    """From a loop that waits for somebody else: it is not what stands still."""
    signs: Signs | None = getattr(_here, "signs", None)
    if signs is not None:
        signs.sign()
