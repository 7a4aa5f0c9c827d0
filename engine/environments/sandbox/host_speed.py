"""How much longer a core of this host takes than the one on which limits of processor time were chosen.

Measured in processor time: a host that is busy is no slower. What makes the same work cost more of it (an old core, a
sibling on the same core, a hypervisor that takes it away) does count.
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
"""A neighbour may come and go; a measurement costs 10 ms."""


class HostSpeed:
    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()
        self._scale = 1.0
        self._measured_at = float("-inf")

    def scale(self) -> float:
        """From 1 to 10: what a limit of processor time is multiplied by."""
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
