"""The course of a run without alarms: too early to judge, learning, solved, or on a plateau."""

from typing import Final

from backend.verdicts.rules.finding import Finding
from backend.verdicts.rules.observed import WINDOW, Level, Observed
from backend.verdicts.rules.rewards import REWARD, SOLVED_AT, level_now, place_of

TOLD_APART: Final = 2.0
"""Standard errors: one of twenty flat runs is called moving, for a short time, which is the friendlier mistake."""
_WHILE: Final = "If held-out rewards are flat too, stop here. Otherwise try"
_OVER: Final = "Fewer steps were enough. To get further from the last checkpoint, try"
LONG_ENOUGH: Final = 60
"""Points needed to call the last half flat: below, warm-up and luck with prompts shape most of the curve."""


def course_of(run: Observed) -> Finding:
    line = run.whole.get(REWARD, ())
    now = level_now(run)
    if now is None:
        return Finding(kind="early", tone="plain", sentence="Too early to judge: too few steps trained.")
    place = place_of(run)
    if place is not None and place >= SOLVED_AT:
        return _solved(run, now)
    size = min(WINDOW, len(line) // 2)
    first, last = (Level.of([value for _, value in part]) for part in (line[:size], line[-size:]))
    if flat_from := _flat_from(run):
        return _plateau(run, now, first, flat_from)
    if last.beyond(first, errors=TOLD_APART):
        return Finding(
            kind="learning",
            tone="good",
            sentence=f"Learning: the reward rose from {first.mean:.3g} to {last.mean:.3g} since step {line[0][0]}.",
            evidence=(REWARD,),
            since_step=line[0][0],
        )
    return Finding(
        kind="early",
        tone="plain",
        sentence=f"Too early to judge: the reward is {last.mean:.3g}; its change so far may be chance.",
        evidence=(REWARD,),
    )


def _solved(run: Observed, now: Level) -> Finding:
    equal = run.usual("reward/groups_without_signal")
    more = "; few groups are left to learn from" if equal is not None and equal >= 0.5 else ""
    return Finding(
        kind="solved",
        tone="good",
        sentence=f"Solved: the reward is {now.mean:.3g}, close to the best of any answer{more}.",
        evidence=(REWARD, "evaluation/reward"),
        remedy="Use harder prompts: these have little left to teach." if more else "",
    )


def _plateau(run: Observed, now: Level, first: Level, since: int) -> Finding:
    came = f"the reward rose from {first.mean:.3g} to {now.mean:.3g} and stays there"
    has_risen = now.beyond(first, errors=TOLD_APART)
    return Finding(
        kind="plateau",
        tone="notice",
        sentence=f"On a plateau since step {since}: {came if has_risen else f'the reward stays at {now.mean:.3g}'}.",
        evidence=(REWARD, "evaluation/reward", "train/entropy"),
        remedy=f"{_OVER if run.is_over else _WHILE}: a higher learning rate, more prompts per step, or harder prompts.",
        since_step=since,
    )


def _flat_from(run: Observed) -> int | None:
    """The step from which on no stretch differs from the end of the run; None if that is less than half of it."""
    line = run.whole.get(REWARD, ())
    if len(line) < LONG_ENOUGH:
        return None
    values = [value for _, value in line]
    size, stride = len(values) // 4, len(values) // 16
    end = Level.of(values[-size:])
    begins = len(values) - size
    for at in range(len(values) - 2 * size, -1, -stride):
        stretch = Level.of(values[at : at + size])
        if end.beyond(stretch, errors=TOLD_APART) or stretch.beyond(end, errors=TOLD_APART):
            break
        begins = at
    return line[begins][0] if 2 * begins <= len(values) else None
