"""The kernel's counters for the processes of one sandbox, read from outside: inside there is no /proc.

    /proc/PID/stat    processor time of a process, and of children that it has reaped
    the rest          per thread, by `engine/process/thread_times.py`

Invariant: a process that cannot be read (it has ended, /proc is hidden) is left out without an error.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from engine.process.thread_times import PROC, UNREADABLE, ThreadTimes, stat_fields, thread_times, threads_of

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_SOONEST_S, _LATEST_S = 0.1, 1.0
"""Between two searches of /proc, which cost 30 µs for each process of the host; more frequent while a tree grows."""
_PARENT, _UTIME, _TIMES_END, _NUM_THREADS = 1, 11, 15, 17
"""Indices of `stat`'s fields after the name; the times are utime, stime, cutime, cstime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeTimes:
    cpu_s: float = 0.0
    threads: Mapping[int, ThreadTimes] = field(default_factory=dict)


def times_of(pids: list[int]) -> TreeTimes:
    threads: dict[int, ThreadTimes] = {}
    cpu_ticks = 0
    for pid in pids:
        with suppress(*UNREADABLE):
            process = stat_fields(f"{PROC}/{pid}")
            cpu_ticks += sum(map(int, process[_UTIME:_TIMES_END]))
            threads[pid] = thread_times(f"{PROC}/{pid}", process)
            if process[_NUM_THREADS] != b"1":
                threads |= threads_of(pid)
    return TreeTimes(cpu_s=cpu_ticks / _TICKS_PER_S, threads=threads)


class Descendants:
    """A process and all its descendants, for use where no control group lists them."""

    def __init__(self, root: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._pids: list[int] = []
        self.expect_growth()

    def expect_growth(self) -> None:
        """Searches at once, and frequently again: a call begins and may start processes."""
        self._find_at, self._every_s = float("-inf"), _SOONEST_S

    def __call__(self) -> list[int]:
        now = self._clock()
        if now >= self._find_at:
            self._pids = _list_tree(self._root)
            self._find_at, self._every_s = now + self._every_s, min(2 * self._every_s, _LATEST_S)
        return self._pids


def _list_tree(root: int) -> list[int]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    with os.scandir(PROC) as entries:
        for entry in entries:
            if entry.name.isdigit():
                with suppress(*UNREADABLE):
                    children[int(stat_fields(entry.path)[_PARENT])].append(int(entry.name))
    tree = [root]
    for pid in tree:
        tree += children[pid]
    return tree
