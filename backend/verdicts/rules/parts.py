"""Rewards that are paid by parts: whether a run learns the form that is paid for, and nothing of the answer.

         1 ┤      ╭───────────  form: full, and nothing left to gain by it
           │    ╭─╯
      0.5  ┤  ╭─╯ ╭───────────  reward: rose with it, and stands since
           │──╯───╯
         0 ┤────────────────── answer: where it was
           └──────┼── stretch ──▶ step

Invariants:
- no part is known by its name: the form is what is full, an answer what is low, and both by what they did;
- whatever else still rises, part or reward, is learning, and then this rule says nothing;
- what was full from the beginning taught nothing, so it explains nothing.
"""

from collections.abc import Mapping
from math import inf, sqrt
from statistics import fmean, median
from typing import Final

from backend.verdicts.rules.finding import Finding, alarm
from backend.verdicts.rules.observed import FIRST, Level, Line, Observed
from backend.verdicts.rules.rewards import REWARD
from backend.verdicts.rules.series import PART

FULL: Final = (0.95, 0.90)
"""Of 1, the median since: one answer in twenty may slip for ever."""
DIPS: Final = (0.85, 0.75)
"""What a step of thirty answers falls to by chance, of a part that is full. Below, it was not full yet."""
GAINED: Final = 0.15
"""What the form must have risen by, from its first steps on, to have been learned at all."""
STANDS_FOR: Final = 15
"""Points since it was full: answers come later than form in many a healthy run, and get a window and a half for it."""
LOW: Final = (0.50, 0.60)
"""Of 1. What is right more often than not is an answer that was there before, not one that is missed."""
RISES: Final = (1.0, 2.0)
"""Standard errors by which what stands may seem to rise: a doubt is in favour of the run."""
APART: Final = 2.0
"""Standard errors by which the reward must have gained."""


def learns_form_alone(run: Observed) -> Finding | None:
    parts = {name: line for name, line in run.whole.items() if name.startswith(PART) and _is_share(line)}
    full = min((name for name in parts if _is_full(run, parts[name])), key=lambda name: parts[name][0][1], default="")
    if not full:
        return None
    since = _full_since(run, parts[full])
    low = _missed(run, parts, since)
    reward = run.whole.get(REWARD, ())
    if not low or not _stands(run, _from(reward, since)) or not _has_gained(reward, since):
        return None
    first, now, missed = (
        fmean(_values(each)) for each in (parts[full][:FIRST], _from(parts[full], since), _from(parts[low], since))
    )
    return alarm(
        "collapsing",
        f"Collapsing into form: “{_name(full)}” rose from {first:.2g} to {now:.2g} and is full since step {since}, "
        f"while “{_name(low)}” stays at {missed:.2g}. The reward gained by the form alone.",
        evidence=(full, low, REWARD),
        remedy="Pay for the form only where the answer is right too, or pay less for it. Easier prompts or larger "
        "groups (algorithm.group_size) help as well: now and then an answer is right then, and is learned from.",
    )


def _is_share(line: Line) -> bool:
    return all(0 <= value <= 1 for _, value in line)


def _is_full(run: Observed, line: Line) -> bool:
    stretch = _values(_from(line, _full_since(run, line)))
    return (
        len(stretch) >= STANDS_FOR
        and run.above(median(stretch), FULL, kind="collapsing")
        and fmean(stretch) - fmean(_values(line[:FIRST])) >= GAINED
    )


def _full_since(run: Observed, line: Line) -> int:
    """The step after the last one that was too low for chance."""
    return max((step + 1 for step, value in line if run.below(value, DIPS, kind="collapsing")), default=line[0][0])


def _missed(run: Observed, parts: Mapping[str, Line], since: int) -> str:
    """The lowest part; none where one that is not full rises, or where all are right more often than not."""
    rest = {name: line for name, line in parts.items() if not _is_full(run, line)}
    for line in rest.values():
        before = [place for place in line if place[0] < since]
        if not _stands(run, _from(line, since), before):
            return ""
    levels = {name: fmean(_values(_from(line, since))) for name, line in rest.items()}
    lowest = min(levels, key=lambda name: levels[name], default="")
    return lowest if lowest and run.below(levels[lowest], LOW, kind="collapsing") else ""


def _stands(run: Observed, stretch: Line, before: Line = ()) -> bool:
    """It rises neither within the stretch nor from what was before it."""
    if len(stretch) < STANDS_FOR:
        return False
    half = len(stretch) // 2
    pairs = [(stretch[:half], stretch[half:]), *([(before, stretch)] if before else [])]
    return all(run.below(_errors_apart(*pair), RISES, kind="collapsing") for pair in pairs)


def _has_gained(reward: Line, since: int) -> bool:
    first, now = Level.of(_values(reward[:FIRST])), Level.of(_values(_from(reward, since)))
    return now.beyond(first, errors=APART)


def _errors_apart(earlier: Line, later: Line) -> float:
    one, other = Level.of(_values(earlier)), Level.of(_values(later))
    error, rise = sqrt(one.error**2 + other.error**2), other.mean - one.mean
    return rise / error if error else (inf if rise > 0 else 0.0)


def _from(line: Line, step: int) -> Line:
    return [place for place in line if place[0] >= step]


def _values(line: Line) -> list[float]:
    return [value for _, value in line]


def _name(series: str) -> str:
    return series.removeprefix(PART)
