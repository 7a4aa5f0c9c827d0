"""Rewards made of parts: does the run learn only the form that is paid for, and not the answer?

         1 ┤      ╭───────────  form: full, nothing left to gain
           │    ╭─╯
      0.5  ┤  ╭─╯ ╭───────────  reward: rose with it, flat since
           │──╯───╯
         0 ┤────────────────── answer: unchanged
           └──────┼── stretch ──▶ step

Invariants:
- parts are recognised by their values, never by name: a full part is the form, a low one an answer;
- this rule is silent while another part or the reward still rises: that is learning;
- a part that was full from the beginning taught nothing, so it explains nothing.
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
"""Of 1: the median since it became full. One answer in twenty may always slip."""
DIPS: Final = (0.85, 0.75)
"""What a full part may drop to by chance in a step of thirty answers. Below, it was not full yet."""
GAINED: Final = 0.15
"""Rise from the first steps on that proves that the form was learned."""
STANDS_FOR: Final = 15
"""Points since it became full. In many healthy runs answers come later than form: they get a window and a half."""
LOW: Final = (0.50, 0.60)
"""Of 1. An answer that is right more often than not was known before, and is not missing."""
RISES: Final = (1.0, 2.0)
"""Standard errors that a flat line may seem to rise by: in doubt, the run counts as learning."""
APART: Final = 2.0
"""Standard errors by which the reward must have risen."""


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
        f"Collapsing into format: “{_name(full)}” rose from {first:.2g} to {now:.2g}, its maximum since step {since}, "
        f"but “{_name(low)}” stays at {missed:.2g}. Only the format earned the higher reward.",
        evidence=(full, low, REWARD),
        remedy="Reward the format only if the answer is right too, or reward it less. Easier prompts or larger "
        "groups (algorithm.group_size) also help: the model can learn once some answers are right.",
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
    """The step after the last value that is too low to be chance."""
    return max((step + 1 for step, value in line if run.below(value, DIPS, kind="collapsing")), default=line[0][0])


def _missed(run: Observed, parts: Mapping[str, Line], since: int) -> str:
    """The lowest part; "" if a part that is not full rises, or all parts are right more often than not."""
    rest = {name: line for name, line in parts.items() if not _is_full(run, line)}
    for line in rest.values():
        before = [place for place in line if place[0] < since]
        if not _stands(run, _from(line, since), before):
            return ""
    levels = {name: fmean(_values(_from(line, since))) for name, line in rest.items()}
    lowest = min(levels, key=lambda name: levels[name], default="")
    return lowest if lowest and run.below(levels[lowest], LOW, kind="collapsing") else ""


def _stands(run: Observed, stretch: Line, before: Line = ()) -> bool:
    """True if the line rises neither within the stretch nor compared to the points before."""
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
