"""Calls that may block forever (a file system whose server is gone), run in a thread of their own.

    request ──newest()──▶ BackgroundCall ──one thread──▶ statvfs, a write, … which the kernel may block forever

Invariants:
- no caller waits longer than the deadline, counted from the start of the call: while a call is known to hang, further
  callers do not wait at all;
- one call at a time: a hanging call holds one thread, however many callers there are and however long it lasts;
- the last result is kept, and returned with its age, never as if it were new.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult(Generic[T]):
    last: T | None
    """None: no call has returned yet."""
    age_s: float = 0.0
    """Of `last`."""
    silent_s: float | None = None
    """Seconds since the pending call began; None: it returned."""


class BackgroundCall(Generic[T]):
    def __init__(self, *, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._deadline_s = deadline_s
        self._clock = clock
        self._guard = threading.Lock()
        self._pending: Future[T] | None = None
        self._pending_since = 0.0
        self._last: tuple[T, float] | None = None

    def newest(self, ask: Callable[[], T]) -> CallResult[T]:
        """Raises the exception of `ask`. While an older call is pending, `ask` is not called."""
        with self._guard:
            if self._pending is None or self._pending.done():
                pending, began_at = Future[T](), self._clock()
                threading.Thread(target=self._run, args=[pending, ask], name="background-call", daemon=True).start()
                self._pending, self._pending_since = pending, began_at
            pending, began_at = self._pending, self._pending_since
        wait([pending], max(0.0, began_at + self._deadline_s - self._clock()))
        if pending.done():  # not by catching TimeoutError, which a file system may raise itself
            return CallResult(last=pending.result())
        now, last = self._clock(), self._last
        return CallResult(last=last[0] if last else None, age_s=now - last[1] if last else 0.0, silent_s=now - began_at)

    def _run(self, pending: "Future[T]", ask: Callable[[], T]) -> None:
        try:
            result = ask()
        except BaseException as error:  # noqa: BLE001  # passed to the caller
            pending.set_exception(error)
            return
        self._last = (result, self._clock())
        pending.set_result(result)
