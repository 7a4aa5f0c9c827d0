"""Rewards by their own scale: an environment may pay from 0 to 1, or from -40 to nothing."""

from statistics import fmean
from typing import Final

from backend.verdicts.rules.observed import FEWEST, WINDOW, Level, Observed

REWARD: Final = "reward/mean"
SOLVED_AT: Final = 0.90
"""Between the worst and the best reward seen. Above, groups agree because they are right."""


def level_now(run: Observed) -> Level | None:
    window = run.window(REWARD)
    return Level.of(window) if len(window) >= FEWEST else None


def best_level(run: Observed) -> Level | None:
    """Of all windows that the run has had, the one with the highest mean."""
    values = [value for _, value in run.whole.get(REWARD, ())]
    windows = (values[at : at + WINDOW] for at in range(len(values) - WINDOW + 1))
    best = max(windows, key=fmean, default=None)
    return Level.of(best) if best else None


def span_of(run: Observed) -> float:
    """From the lowest to the highest that one answer was worth."""
    return _highest(run) - lowest_of(run)


def place_of(run: Observed) -> float | None:
    """Where the mean is between the two, from 0 to 1; nothing while all are worth the same."""
    now, span = level_now(run), span_of(run)
    return (now.mean - lowest_of(run)) / span if now and span > 0 else None


def lowest_of(run: Observed) -> float:
    return min((value for lines in (run.whole, run.recent) for _, value in lines.get("reward/min", ())), default=0.0)


def _highest(run: Observed) -> float:
    return max((value for lines in (run.whole, run.recent) for _, value in lines.get("reward/max", ())), default=0.0)
