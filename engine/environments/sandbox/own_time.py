"""Own time of untrusted code, and the limits that end a call. The only place that decides.

    elapsed  =  own (it computed, or it slept)  +  waited (for a core, or for us)

    CPU time at its limit          TimedOut("cpu")   the code's fault: reward 0
    own time at its limit          TimedOut("wall")  the code's fault: it computed or slept too long
    waited beyond the patience     Starved           no verdict; retried elsewhere

Invariants:
- own time never grows slower than processor time: code that fills the cores itself and then waits for them waits for
  itself;
- of several threads the one that waited longest counts, so a thread that waits hides at most what it waited;
- both limits are multiplied by how much slower this host's cores are (`host_speed.py`).
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from engine.environments.sandbox.host_speed import host_scale
from engine.environments.sandbox.process_times import TreeTimes
from engine.thread_times import ThreadTimes

Ending = Literal["cpu", "wall", "starved"]

LEAST_PATIENCE_S: Final = 600.0
MOST_PATIENCE_S: Final = 3_600.0
PATIENCE: Final = 30.0
"""In limits: a thirtieth of a core is enough for a verdict; with less another host is the better place."""
GLANCE_SHARE: Final = 0.1
"""What counts of a stretch that ended before a look at it: most of it is the time until it began, and until we hear."""


@dataclass(slots=True, kw_only=True)
class OwnTime:
    """Of one call, or of all calls to one program. Its methods are given seconds, and read no clock."""

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
        """Returns how much of that was waited."""
        own_s = max(elapsed_s - waited_s, min(cpu_s, elapsed_s), 0.0)
        self.own_s += own_s
        self.cpu_s += cpu_s
        self.waited_s += elapsed_s - own_s
        return elapsed_s - own_s

    def add_glance(self, elapsed_s: float) -> None:
        self.own_s += GLANCE_SHARE * elapsed_s


class TreeWaits:
    """From what the kernel counts, what a tree of processes used and waited between two looks.

    The kernel adds a wait when the wait is over. Its beginning, before the first look at which the thread stands still,
    was counted as own time; that excess is carried over to later looks, at most one interval of it.
    """

    def __init__(self, before: TreeTimes | None) -> None:
        """None: nothing is known of it yet, so the first look tells nothing."""
        self._before = before
        self._known = dict(before.threads) if before is not None else {}
        """Of every thread that was seen what was last seen: one that a look missed does not wait anew."""
        self._pending_s: dict[int, float] = {}
        """Waits in progress, of which the kernel counts nothing yet."""
        self._late_s: dict[int, float] = {}
        """Of each thread, the waited seconds that are carried over."""

    def since(self, elapsed_s: float, now: TreeTimes) -> tuple[float, float]:
        """Processor time, and the longest wait of a thread."""
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
            told_s = (times.waited_ns - earlier.waited_ns) / 1e9
            waits_s[thread] = told_s + pending_s - pending_before.get(thread, 0.0) + self._late_s.get(thread, 0.0)
        cpu_s = max(now.cpu_s - before.cpu_s, 0.0)
        waited_s = max(min(max(waits_s.values(), default=0.0), elapsed_s - cpu_s), 0.0)
        self._late_s = {
            thread: min(wait_s - waited_s, elapsed_s) for thread, wait_s in waits_s.items() if wait_s > waited_s
        }
        return cpu_s, waited_s


_UNBORN: Final = ThreadTimes(state="", ran_ns=0, waited_ns=0, num_turns=0)


def patience_s(limit_s: float) -> float:
    return min(max(PATIENCE * limit_s, LEAST_PATIENCE_S), MOST_PATIENCE_S)
