"""Ctrl-C, also where Python loses it: an exception that a signal's handler raises inside a finalizer or the callback of
a weak reference is forgotten, and the looking would go on.

Invariant: once Ctrl-C was pressed, nothing more that comes is shown.
"""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Interrupts:
    def __init__(self) -> None:
        self._came = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Where Ctrl-C is somebody else's, or nobody's, it stays so."""
        is_ours = threading.current_thread() is threading.main_thread()
        if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def heed(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            if self._came:
                raise KeyboardInterrupt
            yield item

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        raise KeyboardInterrupt
