"""A run as the rules see it, and the statistics that they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, median, variance
from typing import Final

from backend.verdicts.rules.finding import Kind

Line = Sequence[tuple[int, float]]

RECENT: Final = 30
"""The last steps, read one by one. Most rules look at the last WINDOW of them; pace rules need more."""
WHOLE: Final = 400
"""Number of means that represent a whole run: more would not show on a screen."""
WINDOW: Final = 10
"""Steps that an alarm is based on. It takes six of ten to move the median: no single step raises an alarm, and one that
affects every step is raised by the eighth."""
FIRST: Final = 3
"""Steps that count as the beginning of a run."""
FEWEST: Final = 8
"""Fewest points that a rule judges by: the first steps warm up and cover few prompts."""
NO_SIGNAL: Final = (0.90, 0.75)
"""Of groups. With one group in ten left, few prompts decide the gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    recent: Mapping[str, Line]
    """By series: the last `RECENT` steps, the newest last."""
    whole: Mapping[str, Line]
    """By series: all steps, in at most `WHOLE` means."""
    is_training: bool = True
    """Running with steps left to train. No steps are due while a job starts, waits or evaluates at its end."""
    is_over: bool = False
    silent_s: float = 0.0
    """Since the newest step, or since the job began to run."""
    is_driver_still: bool = False
    staleness_bound: int = 0
    alarms: frozenset[Kind] = field(default_factory=frozenset)
    """Alarms active at the previous verdict: alarms end at another threshold than they begin at."""

    def window(self, name: str, size: int = WINDOW) -> list[float]:
        return [value for _, value in self.recent.get(name, ())[-size:]]

    def usual(self, name: str) -> float | None:
        """Median of the window; None with too few points."""
        window = self.window(name)
        return median(window) if len(window) >= FEWEST else None

    def at_first(self, name: str) -> float | None:
        """Median of the first steps, once the run is past them. Only a few steps: a sudden collapse is complete by the
        fifth."""
        line = self.whole.get(name, ())
        return median(value for _, value in line[:FIRST]) if len(line) >= FEWEST else None

    def first_step(self, name: str) -> int:
        line = self.whole.get(name, ())
        return line[0][0] if line else 0

    def above(self, value: float, limits: tuple[float, float], *, kind: Kind) -> bool:
        begins, ends = limits
        return value > ends if kind in self.alarms else value >= begins

    def below(self, value: float, limits: tuple[float, float], *, kind: Kind) -> bool:
        begins, ends = limits
        return value < ends if kind in self.alarms else value <= begins

    @property
    def step(self) -> int:
        return max((line[-1][0] for line in self.recent.values() if line), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A mean and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Level":
        spread = variance(values) if len(values) > 1 else 0.0
        return cls(mean=fmean(values), error=sqrt(spread / len(values)))

    def beyond(self, other: "Level", *, errors: float) -> bool:
        """Higher than the other by more than `errors` standard errors of their difference."""
        return self.mean - other.mean > errors * sqrt(self.error**2 + other.error**2)
