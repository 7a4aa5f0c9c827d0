"""Scheduler statistics of a process: does it wait for a core, or is it stopped, asleep or gone?

Invariants:
- a process is identified by boot, namespace, pid and start time, so a reused pid is another process;
- the kernel counts a wait only when it ends: a thread that was runnable at both looks without a turn in between has
  waited all that time;
- a thread that is stopped, asleep or gone waits for no core. Without kernel statistics every wait is 0.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from engine.process.thread_times import PROC, UNREADABLE, ThreadTimes, own_wait_ns, stat_fields, threads_of

_STARTED_AT: Final = 19  # index among the fields after the name, in clock ticks since boot


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTimes:
    at: float
    """On its host's monotonic clock."""
    threads: dict[int, ThreadTimes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNamed:
    """An actor's report of its own process."""

    process: str


@cache
def home() -> str:
    """Boot and pid namespace of this process: pids are unique within it."""
    try:
        return f"{Path(PROC, 'sys/kernel/random/boot_id').read_text().strip()}:{Path(PROC, 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def own_process() -> str:
    """A unique name of this process; empty if the host provides no statistics."""
    return process_of(os.getpid())


def process_of(pid: int) -> str:
    started = _start_of(pid)
    return f"{home()}/{pid}/{started}" if started and home() else ""


def home_of(process: str) -> str:
    return process.rpartition("/")[0].rpartition("/")[0]


def thread_waited_s(tid: int) -> float:
    """The time that a thread of this process has waited for a core since its start."""
    return own_wait_ns(f"self/task/{tid}") / 1e9


def look_at(process: str) -> ProcessTimes | None:
    """Reads a process's statistics; None if it is gone or on another host."""
    if not process or home_of(process) != home():
        return None
    pid, started = process.rsplit("/", 2)[1:]
    threads = threads_of(int(pid))
    if not threads or _start_of(int(pid)) != started:
        return None
    return ProcessTimes(at=time.monotonic(), threads=threads)


def waited_between_s(before: ProcessTimes, after: ProcessTimes) -> float:
    """The longest wait of one thread: the others may wait for its lock."""
    lasts_s = max(0.0, after.at - before.at)
    waits_s = (
        _waited_s(before.threads[tid], seen, lasts_s) for tid, seen in after.threads.items() if tid in before.threads
    )
    return min(lasts_s, max(waits_s, default=0.0))


class Looks:
    """The last look at each silent process."""

    def __init__(self) -> None:
        self._last: dict[object, ProcessTimes] = {}

    def waited_s(self, key: object, seen: ProcessTimes | None) -> float:
        """The wait since the previous look."""
        before = self._last.pop(key, None)
        if seen is None:
            return 0.0
        self._last[key] = seen
        return 0.0 if before is None else waited_between_s(before, seen)

    def keep_only(self, is_silent: Callable[[object], bool]) -> None:
        self._last = {key: seen for key, seen in self._last.items() if is_silent(key)}


def _waited_s(before: ThreadTimes, now: ThreadTimes, lasts_s: float) -> float:
    is_queued = before.is_runnable and now.is_runnable and before.num_turns == now.num_turns
    if is_queued:
        return lasts_s - (now.ran_ns - before.ran_ns) / 1e9
    return (now.waited_ns - before.waited_ns) / 1e9


def _start_of(pid: int) -> str:
    try:
        return stat_fields(f"{PROC}/{pid}")[_STARTED_AT].decode()
    except UNREADABLE:
        return ""
