"""Own time of untrusted code, and the limits that end a call. The only place that decides this.

    elapsed  =  own (computed or slept)  +  waited (for a core or for the engine)

    CPU time at its limit          TimedOut("cpu")   the code's fault: reward 0
    own time at its limit          TimedOut("wall")  the code's fault: it computed or slept too long
    waited beyond the patience     Starved           no verdict; retried elsewhere

Invariants:
- own time never grows slower than processor time: waits of code that fills the cores itself are its own time;
- of several threads the longest wait counts, not the sum: other threads could otherwise sleep behind waiting ones;
- both limits are multiplied by how much slower this host's cores are (`host_speed.py`).
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from engine.environments.sandbox.host_speed import host_scale
from engine.environments.sandbox.process_times import TreeTimes
from engine.process.thread_times import ThreadTimes

Ending = Literal["cpu", "wall", "starved"]

LEAST_PATIENCE_S: Final = 600.0
MOST_PATIENCE_S: Final = 3_600.0
PATIENCE: Final = 30.0
"""In limits: a thirtieth of a core suffices for a verdict; with less, another host is the better place."""
GLANCE_SHARE: Final = 0.1
"""Own share of a span that ended before the first look: most of it is the delay until the start and of the answer."""


@dataclass(slots=True, kw_only=True)
class OwnTime:
    """Of one call, or of all calls to one program. The methods receive seconds and read no clock."""

    limit_s: float
    cpu_limit_s: float = math.inf
    own_s: float = 0.0
    waited_s: float = 0.0
    cpu_s: float = 0.0

    @classmethod
    def scaled(cls, limit_s: float, cpu_limit_s: float = math.inf) -> "OwnTime":
        scale = host_scale()
        return cls(limit_s=limit_s * scale, cpu_limit_s=cpu_limit_s * scale)

    @property
    def left_s(self) -> float:
        return max(self.limit_s - self.own_s, 0.0)

    @property
    def ending(self) -> Ending | None:
        if self.cpu_s >= self.cpu_limit_s:
            return "cpu"
        if self.own_s >= self.limit_s:
            return "wall"
        return "starved" if self.waited_s >= patience_s(self.limit_s) else None

    def add(self, elapsed_s: float, *, waited_s: float = 0.0, cpu_s: float = 0.0) -> float:
        """Returns the waited part of `elapsed_s`."""
        own_s = max(elapsed_s - waited_s, min(cpu_s, elapsed_s), 0.0)
        self.own_s += own_s
        self.cpu_s += cpu_s
        self.waited_s += elapsed_s - own_s
        return elapsed_s - own_s

    def add_glance(self, elapsed_s: float) -> None:
        self.own_s += GLANCE_SHARE * elapsed_s


class TreeWaits:
    """Processor time and waits of a process tree between two looks, from the kernel's counters.

    The kernel adds a wait when it is over. Its beginning, before the first look that finds the thread waiting, was
    counted as own time; that excess is carried over to later looks, at most one interval of it.
    """

    def __init__(self, before: TreeTimes | None) -> None:
        """`before`: None if the tree was never sampled; the first look then counts nothing."""
        self._before = before
        self._known = dict(before.threads) if before is not None else {}
        """The last counters of every thread: a thread missed by one look does not count its wait again."""
        self._pending_s: dict[int, float] = {}
        """Waits in progress, which the kernel's counters do not include yet."""
        self._late_s: dict[int, float] = {}
        """The waited seconds of each thread that are carried over."""

    def since(self, elapsed_s: float, now: TreeTimes) -> tuple[float, float]:
        """Processor time, and the longest wait of a thread, since the last look."""
        before, self._before = self._before, now
        known, self._known = self._known, {**self._known, **now.threads}
        if before is None:
            return 0.0, 0.0
        pending_before, self._pending_s = self._pending_s, {}
        waits_s: dict[int, float] = {}
        for thread, times in now.threads.items():
            earlier = known.get(thread, _UNBORN)
            pending_s = 0.0
            if times == earlier and times.is_runnable:
                pending_s = self._pending_s[thread] = pending_before.get(thread, 0.0) + elapsed_s
            counted_s = (times.waited_ns - earlier.waited_ns) / 1e9
            waits_s[thread] = counted_s + pending_s - pending_before.get(thread, 0.0) + self._late_s.get(thread, 0.0)
        cpu_s = max(now.cpu_s - before.cpu_s, 0.0)
        waited_s = max(min(max(waits_s.values(), default=0.0), elapsed_s - cpu_s), 0.0)
        self._late_s = {
            thread: min(wait_s - waited_s, elapsed_s) for thread, wait_s in waits_s.items() if wait_s > waited_s
        }
        return cpu_s, waited_s


_UNBORN: Final = ThreadTimes(state="", ran_ns=0, waited_ns=0, num_turns=0)


def patience_s(limit_s: float) -> float:
    return min(max(PATIENCE * limit_s, LEAST_PATIENCE_S), MOST_PATIENCE_S)
