"""What is known of a run, and the few sums that rules are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, median, variance
from typing import Final

from backend.verdicts.rules.finding import Kind

Line = Sequence[tuple[int, float]]

RECENT: Final = 30
"""The last steps, read one by one. Rules look at the last WINDOW of them; a pace may need more."""
WHOLE: Final = 400
"""Means that a whole run is read in: a long one's windows are as many steps as a screen shows as a hair's breadth."""
WINDOW: Final = 10
"""Steps that an alarm is made of. Its median is moved by six of them: no single step raises an alarm, and a sickness of
every step is named at the eighth."""
FIRST: Final = 3
"""Steps in which a run is what it was at its beginning."""
FEWEST: Final = 8
"""Points without which a rule says nothing: the first steps warm up, and are few prompts."""
NO_SIGNAL: Final = (0.90, 0.75)
"""Of groups. With one group in ten left, a gradient is a few prompts' opinion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    recent: Mapping[str, Line]
    """Of each series the last `RECENT` steps, the newest last."""
    whole: Mapping[str, Line]
    """Of each series all steps, in at most `WHOLE` means."""
    is_training: bool = True
    """It runs, and has steps left to train; what begins, waits or evaluates at its end is not awaited."""
    is_over: bool = False
    silent_s: float = 0.0
    """Since the newest step, or since it began to run."""
    is_driver_still: bool = False
    staleness_bound: int = 0
    alarms: frozenset[Kind] = field(default_factory=frozenset)
    """That were active when it was judged before: they end later than they begin."""

    def window(self, name: str, size: int = WINDOW) -> list[float]:
        return [value for _, value in self.recent.get(name, ())[-size:]]

    def usual(self, name: str) -> float | None:
        """The median of the window; nothing where too few steps have said it."""
        window = self.window(name)
        return median(window) if len(window) >= FEWEST else None

    def at_first(self, name: str) -> float | None:
        """The median of its first steps, of a run that has gone on since. Few, since what collapses at once has done so
        by the fifth."""
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
    """A mean, and how far chance alone may have moved it."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Level":
        spread = variance(values) if len(values) > 1 else 0.0
        return cls(mean=fmean(values), error=sqrt(spread / len(values)))

    def beyond(self, other: "Level", *, errors: float) -> bool:
        """Higher than the other by more than so many standard errors of their difference."""
        return self.mean - other.mean > errors * sqrt(self.error**2 + other.error**2)
