"""Real CPU starvation without root: a process at idle priority and a busy one share one core."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SPIN = "while True: pass"
SLEEP = "import time; time.sleep(600)"


@contextlib.contextmanager
def running(program: str) -> Iterator[int]:
    """Yields the program's pid."""
    process = subprocess.Popen([sys.executable, "-S", "-c", program])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def starved(pid: int, *, num_busy: int = 1) -> Iterator[None]:
    """Every thread of the process gets almost no time on a core."""
    core = min(os.sched_getaffinity(0))
    everywhere = os.sched_getaffinity(pid)
    with contextlib.ExitStack() as busy:
        for _ in range(num_busy):
            os.sched_setaffinity(busy.enter_context(running(SPIN)), {core})
        for tid in _threads(pid):
            os.sched_setaffinity(tid, {core})
            os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0))
        try:
            yield
        finally:
            for tid in _threads(pid):
                os.sched_setaffinity(tid, everywhere)
                os.sched_setscheduler(tid, os.SCHED_OTHER, os.sched_param(0))


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir()]
    return []
