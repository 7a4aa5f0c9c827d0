"""Signals that end a command: SIGTERM is treated like Ctrl-C, and cleaning up is not cut short by a second one."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


def end_as_if_by_keyboard() -> None:
    """So that SIGTERM, too, runs every `finally`; and SIGINT where a shell that began it in the background had it
    ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
