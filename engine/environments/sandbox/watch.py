"""Samples a sandbox's processes while a call runs, and adds up its own time (`own_time.py`).

    start ── first look ── look ── look ── … ── finish        each LOOK_S apart

A call that ends before the first look is not sampled: only a share of its time counts (`OwnTime.add_glance`).
"""

import time
from collections.abc import Callable
from typing import Final, Protocol

from engine.environments.sandbox.excuses import excuse_wait
from engine.environments.sandbox.own_time import Ending, OwnTime, TreeWaits
from engine.environments.sandbox.process_times import TreeTimes
from engine.process.thread_times import own_wait_ns

LOOK_S: Final = 0.1
"""A look takes a third of a millisecond."""
_SOONEST_S: Final = 0.01
NEW_BORN: Final = TreeTimes()


class Patience(Protocol):
    def is_over(self) -> bool: ...

    def wait_s(self) -> float:
        """Seconds until the next call of `is_over`."""
        ...


class Deadline:
    """A wall-clock deadline, for steps whose timeout yields no verdict."""

    def __init__(self, seconds: float) -> None:
        self._ends_at = time.monotonic() + seconds

    def is_over(self) -> bool:
        return self.wait_s() <= 0

    def wait_s(self) -> float:
        return self._ends_at - time.monotonic()


class Watch:
    def __init__(self, own: OwnTime, look_at: Callable[[], TreeTimes], *, before: TreeTimes | None = None) -> None:
        """`before`: `NEW_BORN` for a tree that starts now; None for a warm one."""
        self._own, self._look_at = own, look_at
        self._waits = TreeWaits(before)
        self._is_glance = before is None
        self._seen_at, self._waited_ns = time.monotonic(), own_wait_ns()

    @property
    def ending(self) -> Ending | None:
        return self._own.ending

    def wait_s(self) -> float:
        return max(min(LOOK_S, self._own.left_s), _SOONEST_S) - (time.monotonic() - self._seen_at)

    def is_over(self) -> bool:
        if self.wait_s() <= 0:
            self._look()
        return self._own.ending is not None

    def finish(self) -> None:
        """Call it when the sandbox has responded or is blocked on the engine."""
        self._own.add_glance(time.monotonic() - self._seen_at)

    def _look(self) -> None:
        now, waited_ns, times = time.monotonic(), own_wait_ns(), self._look_at()
        elapsed_s, ours_s = now - self._seen_at, (waited_ns - self._waited_ns) / 1e9
        self._seen_at, self._waited_ns = now, waited_ns
        cpu_s, waited_s = self._waits.since(elapsed_s, times)
        if self._is_glance:
            self._is_glance = False
            self._own.add_glance(elapsed_s)
            return
        excuse_wait(self._own.add(elapsed_s, waited_s=waited_s + ours_s, cpu_s=cpu_s))
