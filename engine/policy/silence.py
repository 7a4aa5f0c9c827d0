"""Silence: the time since a process last gave a sign of life, less the time in which it was runnable without a core.

    runnable, no core          └──────────────────┐
    on the clock       0 1 2 3 4 · · · · · · · · 23 24 25
    silent for         0 1 2 3                    3  4  5

Invariants:
- a process that waits for a core is not silent, however long the wait;
- for a stopped, sleeping or dead process every second counts: it waits for no core.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Silence:
    since: float
    waited_s: float = 0.0
    """Time spent waiting for a core since then."""

    def end(self, now: float) -> None:
        self.since, self.waited_s = now, 0.0

    def excuse(self, waited_s: float, now: float) -> None:
        """Excuses at most the whole silence: time that the judge itself slept through is excluded already."""
        self.waited_s += min(waited_s, self.lasts_s(now))

    def lasts_s(self, now: float) -> float:
        return max(0.0, now - self.since - self.waited_s)
