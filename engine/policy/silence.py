"""Silence: the time since a process owed a sign, less the time in which its host kept it from running.

    runnable, no core          └──────────────────┐
    on the clock       0 1 2 3 4 · · · · · · · · 23 24 25
    silent for         0 1 2 3                    3  4  5

Invariants:
- a process that waits for a core is not silent, however long that lasts;
- of a process that is stopped, that sleeps or is gone every second counts: such a process waits for no core.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Silence:
    since: float
    waited_s: float = 0.0
    """For a core, since then."""

    def end(self, now: float) -> None:
        self.since, self.waited_s = now, 0.0

    def excuse(self, waited_s: float, now: float) -> None:
        """At most all of it: what the judge slept through is no silence either, and counts once."""
        self.waited_s += min(waited_s, self.lasts_s(now))

    def lasts_s(self, now: float) -> float:
        return max(0.0, now - self.since - self.waited_s)
