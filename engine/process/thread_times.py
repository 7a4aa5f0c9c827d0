"""Linux' counters of each thread: the only reader of `stat` and `schedstat`.

    /proc/PID/task/TID/stat       R runnable (it has a core, or waits for one), S and D asleep, T stopped
    /proc/PID/task/TID/schedstat  ns on a core, ns in which it was runnable without one, turns on a core

A used-up CPU quota counts as a wait for a core. The kernel adds a wait only when it is over.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

PROC: Final = "/proc"
UNREADABLE: Final = (OSError, ValueError, IndexError)
"""The process ended, /proc is hidden, or this kernel does not count."""
_STATE: Final = 0
_RUNNABLE: Final = "R"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTimes:
    state: str
    ran_ns: int
    waited_ns: int
    """Time waited for a core; a wait in progress is not included."""
    num_turns: int

    @property
    def is_runnable(self) -> bool:
        return self.state == _RUNNABLE


def stat_fields(folder: str) -> list[bytes]:
    """The fields after the name, which the process chooses and which may contain brackets. Raises `UNREADABLE`."""
    return _read(f"{folder}/stat").rpartition(b")")[2].split()


def thread_times(folder: str, stat: list[bytes] | None = None) -> ThreadTimes:
    """`folder`: that of a process (its first thread) or thread in /proc; `stat`: its fields, if already read. Raises
    `UNREADABLE`."""
    ran_ns, waited_ns, num_turns = map(int, _read(f"{folder}/schedstat").split())
    state = (stat or stat_fields(folder))[_STATE].decode()
    return ThreadTimes(state=state, ran_ns=ran_ns, waited_ns=waited_ns, num_turns=num_turns)


def threads_of(pid: int) -> dict[int, ThreadTimes]:
    """The times of each thread by number, without threads that have just ended."""
    threads = {}
    with suppress(OSError), os.scandir(f"{PROC}/{pid}/task") as entries:
        for entry in entries:
            with suppress(*UNREADABLE):
                threads[int(entry.name)] = thread_times(entry.path)
    return threads


def own_wait_ns(thread: str = "thread-self") -> int:
    """The wait for a core of a thread, by its path below /proc, since it began; 0 if the kernel does not count."""
    try:
        return int(_read(f"{PROC}/{thread}/schedstat").split()[1])
    except UNREADABLE:
        return 0


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4_096)
    finally:
        os.close(fd)
