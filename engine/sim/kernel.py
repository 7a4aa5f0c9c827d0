"""Virtual time: a heap of events with a total order.

Invariants: time never goes back; events at the same time happen in the order in which they were scheduled, so a seed
always gives the same run.
"""

from collections.abc import Callable
from heapq import heappop, heappush

Event = Callable[[], object]


class Kernel:
    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Event]] = []
        self._serial = 0

    def after(self, delay_s: float, event: Event) -> None:
        self.at(self.now + delay_s, event)

    def at(self, when: float, event: Event) -> None:
        """Schedules at an absolute time: equal sums of delays can differ in their last digit, and so in their order."""
        self._serial += 1
        heappush(self._heap, (when, self._serial, event))

    def step(self) -> bool:
        """Runs one event; False if none is scheduled."""
        if not self._heap:
            return False
        self.now, _, event = heappop(self._heap)
        self.num_events += 1
        event()
        return True
