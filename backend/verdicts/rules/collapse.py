"""How a run collapses: its steps change nothing, or its answers lose their end, their length, their reward, their
variety, or everything but their form.

Invariant: symptoms come together, so only the most specific one is reported.
"""

from typing import Final

from backend.verdicts.rules.finding import Finding, alarm, percent
from backend.verdicts.rules.observed import FEWEST, NO_SIGNAL, WINDOW, Level, Observed
from backend.verdicts.rules.parts import learns_form_alone
from backend.verdicts.rules.rewards import REWARD, SOLVED_AT, best_level, level_now, lowest_of, place_of, span_of

ENTROPY_LEFT: Final = (0.10, 0.20)
"""Of the first steps'. Good learning lowers entropy too, so this counts only if rewards did not rise."""
ENTROPY_UP: Final = (2.0, 1.5)
"""Times the first, and at least HALF_A_NAT more: close to an even chance of every token, which is noise."""
HALF_A_NAT: Final = 0.5
CUT: Final = (0.80, 0.60)
"""Of answers cut at the limit, if at first half as many were: answers no longer end."""
LENGTH_LEFT: Final = (0.34, 0.50)
"""Of the first steps'. An answer of a third of its length skips its work, or is paid for being short."""
LENGTH_LEFT_ALIKE: Final = (0.60, 0.75)
"""The same, if all answers are also alike: with nothing left to try, the run will not recover by itself."""
LOST: Final = (0.10, 0.20)
"""Left of the first answers' reward, above the lowest seen. A run that never earned anything is stuck instead."""
HAD: Final = 0.10
"""Of the range of rewards: what the first answers must have earned, so that a lucky one is not missed for ever."""
FALLEN: Final = (0.30, 0.15)
"""Of the range of rewards seen, from the best ten steps; and more than FALLEN_ERRORS, so that a row of hard prompts
does not count."""
FALLEN_ERRORS: Final = 4.0
SKIPPED: Final = (0.50, 0.25)
"""Of steps: their loss or gradient was not finite, so they trained nothing."""

_TO_RESTART: Final = "Stop the job and resume from an earlier checkpoint with a third of the learning rate"


def collapsing(run: Observed) -> Finding | None:
    for symptom in (_skipping, _rambling, learns_form_alone, _shrinking, _losing, _scattering, _narrowing, _falling):
        if finding := symptom(run):
            return finding
    return None


def _skipping(run: Observed) -> Finding | None:
    window = run.window("train/skipped")
    share = sum(value > 0 for value in window) / len(window) if len(window) >= FEWEST else 0.0
    if not run.above(share, SKIPPED, kind="collapsing"):
        return None
    return alarm(
        "collapsing",
        f"Collapsing: {percent(share)} of the last steps changed nothing: their loss or gradient was not finite.",
        evidence=("train/skipped", "train/grad_norm"),
        remedy=f"{_TO_RESTART}.",
    )


def _rambling(run: Observed) -> Finding | None:
    cut, first = run.usual("length/cut_fraction"), run.at_first("length/cut_fraction")
    if cut is None or first is None or first > CUT[0] / 2 or not run.above(cut, CUT, kind="collapsing"):
        return None
    return alarm(
        "collapsing",
        f"Collapsing: {percent(cut)} of the answers no longer end and are cut off at the length limit; at first it was "
        f"{percent(first)}.",
        evidence=("length/cut_fraction", "length/mean"),
        remedy="Make length cost something (algorithm.overlong_tokens), and check whether the reward pays for long "
        "answers. Resume from an earlier checkpoint.",
    )


def _shrinking(run: Observed) -> Finding | None:
    length, first = run.usual("length/mean"), run.at_first("length/mean")
    limits = LENGTH_LEFT_ALIKE if _is_repetitive(run) else LENGTH_LEFT
    if length is None or not first or not run.below(length / first, limits, kind="collapsing"):
        return None
    return alarm(
        "collapsing",
        f"Collapsing: answers shrank from {first:.3g} to {length:.3g} tokens.",
        evidence=("length/mean", "reward/mean"),
        remedy="Read some answers: a reward that pays for short or empty ones is the usual cause. Otherwise resume "
        "from an earlier checkpoint with a lower learning rate.",
    )


def _losing(run: Observed) -> Finding | None:
    """A sudden collapse leaves no ten good steps, and would otherwise look like a run that never earned anything."""
    now, first, lowest, span = level_now(run), run.at_first(REWARD), lowest_of(run), span_of(run)
    if now is None or first is None or not span or (first - lowest) / span < HAD:
        return None
    if not run.below((now.mean - lowest) / (first - lowest), LOST, kind="collapsing"):
        return None
    return alarm(
        "collapsing",
        f"Collapsing: the reward was {first:.3g} at first and is {now.mean:.3g}, near the lowest seen.",
        evidence=(REWARD, "train/entropy"),
        remedy=f"{_TO_RESTART}.",
    )


def _scattering(run: Observed) -> Finding | None:
    entropy, first = run.usual("train/entropy"), run.at_first("train/entropy")
    if entropy is None or first is None or entropy < first + HALF_A_NAT or _has_gained(run):
        return None
    if not run.above(entropy / max(first, 1e-9), ENTROPY_UP, kind="collapsing"):
        return None
    return alarm(
        "collapsing",
        f"Collapsing into noise: entropy rose from {first:.2g} to {entropy:.2g} nats, and rewards did not.",
        evidence=("train/entropy", "reward/mean"),
        remedy=f"{_TO_RESTART}; set algorithm.entropy_coefficient to 0 if it is higher.",
    )


def _narrowing(run: Observed) -> Finding | None:
    entropy, first = run.usual("train/entropy"), run.at_first("train/entropy")
    if entropy is None or not first or _has_gained(run):
        return None
    if not run.below(entropy / first, ENTROPY_LEFT, kind="collapsing"):
        return None
    return alarm(
        "collapsing",
        f"Collapsing: entropy fell from {first:.2g} to {entropy:.2g} nats without a gain in reward. The answers are "
        "nearly always the same.",
        evidence=("train/entropy", "reward/mean"),
        remedy=f"{_TO_RESTART}, or with a higher algorithm.clip_high.",
    )


def _falling(run: Observed) -> Finding | None:
    best, now, span = best_level(run), level_now(run), span_of(run)
    if best is None or now is None or not span or not best.beyond(now, errors=FALLEN_ERRORS):
        return None
    if not run.above((best.mean - now.mean) / span, FALLEN, kind="collapsing"):
        return None
    return alarm(
        "collapsing",
        f"Collapsing: the reward fell from {best.mean:.3g} to {now.mean:.3g}.",
        evidence=("reward/mean", "train/entropy"),
        remedy=f"{_TO_RESTART}.",
    )


def _is_repetitive(run: Observed) -> bool:
    entropy, first = run.usual("train/entropy"), run.at_first("train/entropy")
    equal = run.usual("reward/groups_without_signal")
    if entropy is None or not first or equal is None:
        return False
    narrow = run.below(entropy / first, ENTROPY_LEFT, kind="collapsing")
    return narrow and run.above(equal, NO_SIGNAL, kind="collapsing")


def _has_gained(run: Observed) -> bool:
    now, place = level_now(run), place_of(run)
    first = Level.of([value for _, value in run.whole["reward/mean"][: WINDOW // 2]]) if now else None
    if now is None or first is None or place is None:
        return False
    return place >= SOLVED_AT or now.beyond(first, errors=2.0)
