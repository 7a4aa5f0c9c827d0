"""Waits of tests for what happens elsewhere: in another thread, process or transaction.

Invariant: no verdict depends on a wait's length. The limit only ends a wait whose condition will never hold.
"""

import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

GIVES_UP_AFTER_S = 120.0
LOOKS_EVERY_S = 0.02


def eventually(
    condition: Callable[[], T],
    what: str | Callable[[], str] = "the awaited condition",
    *,
    within_s: float = GIVES_UP_AFTER_S,
    every_s: float = LOOKS_EVERY_S,
    process: subprocess.Popen[Any] | None = None,
) -> T:
    """Polls until the condition is true and returns its value. `what` describes the condition in the failure.

    The wait also fails when `process` has ended: a dead process fulfils nothing.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        has_ended = process is not None and process.poll() is not None
        if has_ended or time.monotonic() > deadline:
            why = "the process ended before" if has_ended else f"not within {within_s:g} s"
            raise AssertionError(f"{why}: {what() if callable(what) else what}")
        time.sleep(every_s)
    return value


def is_listening(port: int) -> bool:
    """Whether a server of this machine accepts connections at the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
