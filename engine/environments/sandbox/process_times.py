"""What the kernel counts for the processes of one sandbox, read from outside: inside there is no /proc.

    /proc/PID/stat                   processor time of a process, and of children that it has reaped
    /proc/PID/task/TID/stat          whether a thread is runnable (R): it has a core, or waits for one
    /proc/PID/task/TID/schedstat     nanoseconds on a core, and waiting for one; a quota that is used up is such a wait

Invariant: what cannot be read (it ended, /proc is hidden) is left out, and never a fault.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

_PROC: Final = "/proc"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_SOONEST_S, _LATEST_S = 0.1, 1.0
"""Between two searches of /proc, which costs 30 µs for every process of the host: often while a tree grows."""
_STATE, _PARENT, _UTIME, _TIMES_END, _NUM_THREADS = 0, 1, 11, 15, 17
"""Fields of `stat` behind the name; of the times utime, stime, cutime, cstime."""
_GONE: Final = (OSError, ValueError, IndexError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTimes:
    ran_ns: int
    waited_ns: int
    """For a core; of the wait in progress nothing is counted until it is over."""
    is_runnable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeTimes:
    cpu_s: float = 0.0
    threads: Mapping[int, ThreadTimes] = field(default_factory=dict)


def times_of(pids: list[int]) -> TreeTimes:
    threads: dict[int, ThreadTimes] = {}
    cpu_ticks = 0
    for pid in pids:
        with suppress(*_GONE):
            process = _stat(f"{_PROC}/{pid}")
            cpu_ticks += sum(map(int, process[_UTIME:_TIMES_END]))
            threads[pid] = _thread(f"{_PROC}/{pid}", process)
            if process[_NUM_THREADS] != b"1":
                threads |= _threads(f"{_PROC}/{pid}/task")
    return TreeTimes(cpu_s=cpu_ticks / _TICKS_PER_S, threads=threads)


def own_wait_ns() -> int:
    """How long the calling thread has waited for a core in its life."""
    try:
        return int(_words(f"{_PROC}/thread-self/schedstat")[1])
    except _GONE:
        return 0


class Descendants:
    """A process and all below it, for where no control group lists them."""

    def __init__(self, root: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._found: list[int] = []
        self.grows()

    def grows(self) -> None:
        """Something begins, and may start processes."""
        self._find_at, self._every_s = float("-inf"), _SOONEST_S

    def __call__(self) -> list[int]:
        now = self._clock()
        if now >= self._find_at:
            self._found = _below(self._root)
            self._find_at, self._every_s = now + self._every_s, min(2 * self._every_s, _LATEST_S)
        return self._found


def _below(root: int) -> list[int]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    with os.scandir(_PROC) as entries:
        for entry in entries:
            if entry.name.isdigit():
                with suppress(*_GONE):
                    children[int(_stat(entry.path)[_PARENT])].append(int(entry.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def _threads(folder: str) -> dict[int, ThreadTimes]:
    threads = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(*_GONE):
                threads[int(entry.name)] = _thread(entry.path, _stat(entry.path))
    return threads


def _thread(folder: str, stat: list[bytes]) -> ThreadTimes:
    ran_ns, waited_ns, _ = map(int, _words(f"{folder}/schedstat"))
    return ThreadTimes(ran_ns=ran_ns, waited_ns=waited_ns, is_runnable=stat[_STATE] == b"R")


def _stat(folder: str) -> list[bytes]:
    return _words(f"{folder}/stat")


def _words(path: str) -> list[bytes]:
    """Behind the name, where there is one, which is the process's own to choose, brackets and all."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4_096).rpartition(b")")[2].split()
    finally:
        os.close(fd)
