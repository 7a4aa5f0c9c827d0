"""Rewards relative to their own range: an environment may pay from 0 to 1, or from -40 to 0."""

from statistics import fmean
from typing import Final

from backend.verdicts.rules.observed import FEWEST, WINDOW, Level, Observed

REWARD: Final = "reward/mean"
SOLVED_AT: Final = 0.90
"""Of the range between the worst and the best reward seen. Above, groups agree because they are right."""


def level_now(run: Observed) -> Level | None:
    window = run.window(REWARD)
    return Level.of(window) if len(window) >= FEWEST else None


def best_level(run: Observed) -> Level | None:
    """The window with the highest mean in the whole run."""
    values = [value for _, value in run.whole.get(REWARD, ())]
    windows = (values[at : at + WINDOW] for at in range(len(values) - WINDOW + 1))
    best = max(windows, key=fmean, default=None)
    return Level.of(best) if best else None


def span_of(run: Observed) -> float:
    """From the lowest to the highest reward of one answer."""
    return _highest(run) - lowest_of(run)


def place_of(run: Observed) -> float | None:
    """Position of the mean in that range, 0 to 1; None while all rewards are equal."""
    now, span = level_now(run), span_of(run)
    return (now.mean - lowest_of(run)) / span if now and span > 0 else None


def lowest_of(run: Observed) -> float:
    return min((value for lines in (run.whole, run.recent) for _, value in lines.get("reward/min", ())), default=0.0)


def _highest(run: Observed) -> float:
    return max((value for lines in (run.whole, run.recent) for _, value in lines.get("reward/max", ())), default=0.0)
