"""A question to what may never answer (a file system whose server is gone), asked by a thread of its own.

    request ──newest()──▶ Aside ──one thread──▶ statvfs, a write, … which the kernel may hold for ever

Invariants:
- nobody waits for longer than the deadline, counted from when the question was put: who asks what is already known to
  be silent does not wait at all;
- one question at a time: what hangs holds one thread, however many ask and however long it lasts;
- what it last said is kept and given with its age, and never as if it were new.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard(Generic[T]):
    last: T | None
    """None: it has never answered."""
    age_s: float = 0.0
    """Of `last`."""
    silent_s: float | None = None
    """How long it has left us without an answer; None: it answered."""


class Aside(Generic[T]):
    def __init__(self, *, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._deadline_s = deadline_s
        self._clock = clock
        self._guard = threading.Lock()
        self._asked: Future[T] | None = None
        self._asked_at = 0.0
        self._last: tuple[T, float] | None = None

    def newest(self, ask: Callable[[], T]) -> Heard[T]:
        """Raises what `ask` raises. While an older question has no answer, `ask` is not called."""
        with self._guard:
            if self._asked is None or self._asked.done():
                asked, asked_at = Future[T](), self._clock()
                threading.Thread(target=self._answer, args=[asked, ask], name="aside", daemon=True).start()
                self._asked, self._asked_at = asked, asked_at
            asked, asked_at = self._asked, self._asked_at
        wait([asked], max(0.0, asked_at + self._deadline_s - self._clock()))
        if asked.done():  # and not by a TimeoutError, which is also what a file system may say
            return Heard(last=asked.result())
        now, last = self._clock(), self._last
        return Heard(last=last[0] if last else None, age_s=now - last[1] if last else 0.0, silent_s=now - asked_at)

    def _answer(self, asked: "Future[T]", ask: Callable[[], T]) -> None:
        try:
            said = ask()
        except BaseException as error:  # noqa: BLE001  # whoever asks is told
            asked.set_exception(error)
            return
        self._last = (said, self._clock())
        asked.set_result(said)
