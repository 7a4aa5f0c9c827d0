"""Alarms: what makes a run not worth its devices until a user acts.

Invariants:
- an alarm begins and ends at different values, so that a number at the threshold raises it only once;
- a rule whose series are missing is silent: an older engine or another algorithm is not a fault.
"""

from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

from backend.verdicts.rules.collapse import collapsing
from backend.verdicts.rules.finding import Finding, alarm, percent
from backend.verdicts.rules.observed import FEWEST, NO_SIGNAL, WINDOW, Observed
from backend.verdicts.rules.rewards import SOLVED_AT, level_now, place_of

SILENT_S: Final = 300.0
"""Five minutes: a lost replica is replaced in one, and a checkpoint is written in less."""
SILENT_STEPS: Final = 10
"""… and ten median steps, so that a run of hour-long steps may take an hour."""
FIRST_STEP_S: Final = 3_600.0
"""The first step has no median: a model on many devices is compiled, and answers its longest prompts, in less."""
FAILED: Final = (0.10, 0.05)
"""Of samples that ended. One failure drops its whole group, so a tenth of the samples is far more than one answer in a
hundred that happened to break a judge; at half of the groups the engine ends the job."""
UNTRUSTED: Final = (0.10, 0.05)
"""Of a batch: untrusted rewards are not trained on, and a tenth of answers is a habit, not chance."""
DROPPED: Final = (0.20, 0.10)
"""Of samples that ended: a fifth of the generation was wasted, more than any schedule gains."""


def alarms_of(run: Observed) -> Iterator[Finding]:
    for rule in _RULES:
        if finding := rule(run):
            yield finding


def _stalled(run: Observed) -> Finding | None:
    step_s = run.window("trainer/step_s")
    silent_s = max(SILENT_S, SILENT_STEPS * median(step_s)) if step_s else FIRST_STEP_S
    if run.is_over or not (run.is_driver_still or (run.is_training and run.silent_s > silent_s)):
        return None
    since = f"no step for {run.silent_s / 60:.0f} minutes" if run.silent_s > 90 else "the driver does not respond"
    usual = f"; a step usually takes {median(step_s):.3g} s" if step_s else ""
    return alarm(
        "stalled",
        f"Stalled at step {run.step}: {since}{usual}.",
        evidence=("trainer/step_s", "environment/seconds_max"),
        remedy="Check the faults and the last lines of the log. An answer that waits for a tool is given up only "
        "after environment.turn_timeout_s: lower it if a tool may hang.",
    )


def _environment(run: Observed) -> Finding | None:
    failed = _share_ended(run, "failed")
    if failed is None or not run.above(failed, FAILED, kind="environment"):
        return None
    return alarm(
        "environment",
        f"The environment fails: {percent(failed)} of the answers of the last steps were dropped, because one in "
        "their group got no reward.",
        evidence=("samples/failed", "environment/seconds_max"),
        remedy="Check the faults and the environment's log for the exception. Catch errors that an answer can cause, "
        "and raise environment.turn_timeout_s if a tool ran out of time.",
    )


def _untrusted(run: Observed) -> Finding | None:
    share = run.usual("reward/untrusted")
    if share is None or not run.above(share, UNTRUSTED, kind="untrusted"):
        return None
    return alarm(
        "untrusted",
        f"The environment does not trust {percent(share)} of its own rewards; these are not trained on.",
        evidence=("reward/untrusted", "reward/mean"),
        remedy="Read a few untrusted answers: if they game the judge, make it stricter; if not, the judge doubts too "
        "easily.",
    )


def _mismatch(run: Observed) -> Finding | None:
    """The engine reports the bound: the difference that rounding explains for this model and the step's tokens."""
    bounds = dict(run.recent.get("train/logprob_gap_bound", ()))
    gaps = [
        (gap, bounds[step]) for step, gap in run.recent.get("train/logprob_gap_p90", ())[-WINDOW:] if step in bounds
    ]
    # A step without answers from the current weights reports neither: most steps of a stale run.
    if run.step < FEWEST or len(gaps) < 3:
        return None
    beyond = sum(gap > bound for gap, bound in gaps) / len(gaps)
    if not run.above(beyond, (0.5, 0.2), kind="mismatch"):
        return None
    gap, bound = (median(values) for values in zip(*gaps, strict=True))
    return alarm(
        "mismatch",
        f"Rollouts and trainer disagree about the same weights: one token in ten differs by {gap:.2g} nats or more, "
        f"where rounding explains {bound:.2g}.",
        evidence=("train/logprob_gap_p90", "train/logprob_gap_bound"),
        remedy="Compare the number formats of rollouts and trainer: trainer.compute_dtype float32 rounds least. A "
        "mixture of experts sampled in bfloat16 picks other experts. See the fault in the list for details.",
    )


def _stuck(run: Observed) -> Finding | None:
    """A group of equal rewards trains nothing; some algorithms filter it out instead."""
    equal, filtered = run.usual("reward/groups_without_signal"), _share_ended(run, "filtered")
    share = max((each for each in (equal, filtered) if each is not None), default=0.0)
    place = place_of(run)
    if not run.above(share, NO_SIGNAL, kind="stuck") or (place is not None and place >= SOLVED_AT):
        return None
    now = level_now(run)
    reward = f" Its reward is {now.mean:.3g}." if now else ""
    return alarm(
        "stuck",
        f"Stuck: in {percent(share)} of the groups all answers got the same reward, so there is nothing to learn "
        f"from.{reward}",
        evidence=("reward/groups_without_signal", "reward/mean"),
        remedy="Use easier prompts, a reward that pays for partial success, or larger groups (algorithm.group_size) "
        "and a higher temperature, so that some answers are better than others.",
    )


def _stale(run: Observed) -> Finding | None:
    dropped = _share_ended(run, "dropped_stale")
    if dropped is None or not run.above(dropped, DROPPED, kind="stale"):
        return None
    return alarm(
        "stale",
        f"{percent(dropped)} of the answers are dropped because they are older than {run.staleness_bound} "
        f"version{'' if run.staleness_bound == 1 else 's'} when they are ready.",
        evidence=("samples/dropped_stale", "staleness/max"),
        remedy="Raise schedule.max_staleness, use more prompts per step, or fewer tokens per answer: the trainer is "
        "faster than the longest answers.",
    )


_RULES: Final[tuple[Callable[[Observed], Finding | None], ...]] = (
    _stalled,
    _environment,
    _untrusted,
    _mismatch,
    collapsing,
    _stuck,
    _stale,
)


def _share_ended(run: Observed, end: str) -> float | None:
    """The share of one kind of end among the samples that ended in the last steps."""
    ends = {each: run.window(f"samples/{each}") for each in ("trained", "filtered", "dropped_stale", "failed")}
    if len(ends[end]) < FEWEST:
        return None
    total = sum(map(sum, ends.values()))
    return sum(ends[end]) / total if total else None
