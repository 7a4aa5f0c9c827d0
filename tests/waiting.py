"""Waits of tests for an event in another thread, process or transaction.

Invariant: no verdict depends on a wait's length. The limit only ends a wait whose condition will never hold.
A coroutine waits with `await asyncio.to_thread(eventually, …)`.
"""

import socket
import subprocess
from collections.abc import Callable
from time import monotonic, sleep  # by name: a test that fakes `time` must not fake its own waits
from typing import Any, TypeVar

from infra.suite.speed import scale

T = TypeVar("T")

GIVES_UP_AFTER_S = 100.0
"""Times SCALE, as every limit here. Less than the time limit of a test, whose failure would not name the condition."""
POLLS_EVERY_S = 0.02


def eventually(
    read: Callable[[], T],
    what: str,
    *,
    until: Callable[[T], object] = bool,
    ignoring: tuple[type[Exception], ...] = (),
    within_s: float = GIVES_UP_AFTER_S,
    every_s: float = POLLS_EVERY_S,
    pause: Callable[[float], object] = sleep,
    process: subprocess.Popen[Any] | None = None,
    log: Callable[[], object] | None = None,
) -> T:
    """Polls until `until(read())` is true, and returns that value.

    The failure states `what` was awaited, the last value or ignored exception, and `log()`. The wait also fails when
    `process` has ended: a dead process fulfils nothing.
    """
    limit_s = within_s * scale()
    deadline = monotonic() + limit_s
    while True:
        # Looked at before the value: the process may fulfil the condition as its last act.
        exit_code = process.poll() if process is not None else None
        is_last = exit_code is not None or monotonic() >= deadline
        try:
            value = read()
            if until(value):
                return value
            last = f"last value: {value!r}"
        except ignoring as error:
            last = f"last error: {error!r}"
        if is_last:
            why = f"not within {limit_s:g} s" if exit_code is None else f"its process ended with {exit_code}"
            raise AssertionError("\n".join([f"{what}: {why}", last, *([str(log())] if log is not None else [])]))
        pause(every_s)


def is_listening(port: int) -> bool:
    """Whether a server of this machine accepts connections at the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
