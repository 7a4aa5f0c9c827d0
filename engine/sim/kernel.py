"""Virtual time: a heap of events with a total order.

Invariants: time never goes back; two events of one instant happen in the order in which they were planned, so a seed
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
        """Exactly then: sums of seconds that should be alike differ in their last digit, and so in their order."""
        self._serial += 1
        heappush(self._heap, (when, self._serial, event))

    def step(self) -> bool:
        """One event; False when nothing is planned any more."""
        if not self._heap:
            return False
        self.now, _, event = heappop(self._heap)
        self.num_events += 1
        event()
        return True
