"""Awake time: the clock by which a process times others out, less the gaps in which that process did not run.

    awake   ──────────┐                     ┌──────▶     on the clock   10 11 12 · · · · · 30 31
    asleep            └ frozen, suspended ──┘            awake time     10 11 12           12 13

Invariants:
- a process that wakes finds every deadline as far away as before: asleep, it could receive no heartbeat;
- awake time never goes back, and equals the clock while there is no gap.
"""

from engine.policy.recovery import ABSENT_AFTER_S


class AwakeTime:
    """Its only reader is the process that judges by it, far more often than once in `absent_after_s`."""

    def __init__(self, now: float | None = None, *, absent_after_s: float = ABSENT_AFTER_S) -> None:
        self._read_at, self._absent_after_s = now, absent_after_s
        self._slept_s = 0.0

    def at(self, now: float) -> float:
        gap_s = 0.0 if self._read_at is None else now - self._read_at
        if gap_s > self._absent_after_s:
            self._slept_s += gap_s
        self._read_at = now
        return now - self._slept_s
