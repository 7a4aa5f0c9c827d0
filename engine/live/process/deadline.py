"""How long somebody is waited for: in the time that the one who waits was awake, asked for again and again.

Invariant: whoever was frozen while it waited finds the end as far away as it was, and blames nobody at once.
"""

import time
from collections.abc import Callable
from typing import Final

from engine.policy.awake import AwakeTime

LOOK_UP_EVERY_S: Final = 1.0
"""Between two questions; a longer pause than `ABSENT_AFTER_S` counts as sleep."""


class AwakeDeadline:
    def __init__(self, lasts_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._awake = clock, AwakeTime()
        self._ends_at = self._awake.at(clock()) + lasts_s

    def left_s(self) -> float:
        return max(0.0, self._ends_at - self._awake.at(self._clock()))

    def slice_s(self) -> float:
        """How long to wait before the next question."""
        return min(self.left_s(), LOOK_UP_EVERY_S)
