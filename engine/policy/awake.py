"""The time by which others are judged: what its reader slept through (frozen, suspended, busy) does not count.

    awake   ──────────┐                     ┌──────▶     on the clock   10 11 12 · · · · · 30 31
    asleep            └ frozen, suspended ──┘            on this one    10 11 12           12 13

Invariants:
- whoever wakes finds every deadline as far away as it was: it could hear nobody, so nobody was silent;
- it never goes back, and while nothing is slept through it is the clock.
"""

from engine.policy.recovery import ABSENT_AFTER_S


class AwakeTime:
    """Read far more often than once in `absent_after_s`, by whoever judges by it and by nobody else."""

    def __init__(self, now: float | None = None, *, absent_after_s: float = ABSENT_AFTER_S) -> None:
        self._read_at, self._absent_after_s = now, absent_after_s
        self._slept_s = 0.0

    def at(self, now: float) -> float:
        gap_s = 0.0 if self._read_at is None else now - self._read_at
        if gap_s > self._absent_after_s:
            self._slept_s += gap_s
        self._read_at = now
        return now - self._slept_s
