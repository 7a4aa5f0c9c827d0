"""Deadlines that count only the time in which the waiting process ran, measured by frequent polls.

Invariant: a freeze of the waiting process does not bring the deadline closer, so no timeout fires right after it.
"""

import time
from collections.abc import Callable
from typing import Final

from engine.policy.awake import AwakeTime

LOOK_UP_EVERY_S: Final = 1.0
"""Between two polls; a pause longer than `ABSENT_AFTER_S` counts as a freeze."""


class AwakeDeadline:
    def __init__(self, lasts_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._awake = clock, AwakeTime()
        self._ends_at = self._awake.at(clock()) + lasts_s

    def left_s(self) -> float:
        return max(0.0, self._ends_at - self._awake.at(self._clock()))

    def slice_s(self) -> float:
        """How long to wait before the next poll."""
        return min(self.left_s(), LOOK_UP_EVERY_S)
