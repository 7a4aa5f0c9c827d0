"""The factor by which a core of this host is slower than the reference core of all limits of processor time.

Measured in processor time: a busy host is not slower. An old core, a hyper-thread on the same core and a hypervisor
that steals time do count, as the same work then costs more processor time.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

REFERENCE_ROUNDS_PER_S: Final = 10_000.0
"""Rounds of `one_round` in a second of a quiet core of an AMD EPYC, by Python 3.11."""
HIGHEST: Final = 10.0
_NUM_ROUNDS: Final = 100
_MEASURED_FOR_S: Final = 60.0
"""Long enough for measurements of 10 ms, short enough to follow a busy sibling core."""


class HostSpeed:
    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()
        self._scale = 1.0
        self._measured_at = float("-inf")

    def scale(self) -> float:
        """The factor for limits of processor time, from 1 to 10."""
        with self._lock:
            if self._clock() - self._measured_at >= _MEASURED_FOR_S:
                self._scale = scale_of(self._rounds_per_s())
                self._measured_at = self._clock()
            return self._scale

    def _rounds_per_s(self) -> float:
        began = self._cpu_clock()
        for _ in range(_NUM_ROUNDS):
            one_round()
        return _NUM_ROUNDS / max(self._cpu_clock() - began, 1e-9)


def scale_of(rounds_per_s: float) -> float:
    return min(max(REFERENCE_ROUNDS_PER_S / rounds_per_s, 1.0), HIGHEST)


def one_round() -> int:
    total = 0
    for number in range(1_000):
        total += number * number % 7
    return total


host_scale: Final = HostSpeed().scale
