"""Scheduler statistics of a process: is it waiting for a core, or stopped, asleep or gone?

Invariants:
- a process is known by boot, namespace, number and start: a number that came again is another process;
- the kernel adds a wait only when it is over: a thread that was runnable at both looks and had no turn has waited for
  all the time between;
- a thread that is stopped, asleep or gone waits for no core. Where the kernel does not count, nobody waits.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from engine.thread_times import PROC, UNREADABLE, ThreadTimes, own_wait_ns, stat_fields, threads_of

_STARTED_AT: Final = 19  # among the fields behind the name, in clock ticks since the boot


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeen:
    at: float
    """On its host's monotonic clock."""
    threads: dict[int, ThreadTimes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNamed:
    """From an actor: the process that it is in."""

    process: str


@cache
def home() -> str:
    """Boot and process namespace of this process: within it, numbers of processes mean the same."""
    try:
        return f"{Path(PROC, 'sys/kernel/random/boot_id').read_text().strip()}:{Path(PROC, 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def own_process() -> str:
    """A name of this process; empty where the host tells nothing."""
    return process_of(os.getpid())


def process_of(pid: int) -> str:
    started = _started(pid)
    return f"{home()}/{pid}/{started}" if started and home() else ""


def home_of(process: str) -> str:
    return process.rpartition("/")[0].rpartition("/")[0]


def thread_waited_s(tid: int) -> float:
    """A thread of this process, since it began."""
    return own_wait_ns(f"self/task/{tid}") / 1e9


def look_at(process: str) -> ProcessSeen | None:
    """None: it is gone, or not of this host."""
    if not process or home_of(process) != home():
        return None
    pid, started = process.rsplit("/", 2)[1:]
    threads = threads_of(int(pid))
    if not threads or _started(int(pid)) != started:
        return None
    return ProcessSeen(at=time.monotonic(), threads=threads)


def waited_between_s(before: ProcessSeen, after: ProcessSeen) -> float:
    """The longest wait of one thread: what the others wait for may be its lock."""
    lasts_s = max(0.0, after.at - before.at)
    waits_s = (
        _waited_s(before.threads[tid], seen, lasts_s) for tid, seen in after.threads.items() if tid in before.threads
    )
    return min(lasts_s, max(waits_s, default=0.0))


class Looks:
    """The last look at each process that is silent."""

    def __init__(self) -> None:
        self._last: dict[object, ProcessSeen] = {}

    def waited_s(self, key: object, seen: ProcessSeen | None) -> float:
        """Since the look before."""
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


def _started(pid: int) -> str:
    try:
        return stat_fields(f"{PROC}/{pid}")[_STARTED_AT].decode()
    except UNREADABLE:
        return ""
