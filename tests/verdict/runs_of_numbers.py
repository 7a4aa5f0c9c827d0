"""Runs as rules see them, built of a number or a line for each series."""

from collections.abc import Mapping, Sequence
from typing import Any

from backend.verdicts.rules.finding import Kind
from backend.verdicts.rules.judging import judge
from backend.verdicts.rules.observed import RECENT, Observed

STEPS = 40
HEALTHY: Mapping[str, float | Sequence[float]] = {
    "reward/min": 0.0,
    "reward/max": 1.0,
    "reward/untrusted": 0.0,
    "reward/groups_without_signal": 0.3,
    "length/mean": 20.0,
    "length/cut_fraction": 0.02,
    "train/entropy": 0.8,
    "train/skipped": 0.0,
    "train/logprob_gap_p90": 1e-6,
    "train/logprob_gap_bound": 1e-5,
    "samples/trained": 36.0,
    "samples/filtered": 0.0,
    "samples/dropped_stale": 0.0,
    "samples/failed": 0.0,
    "trainer/step_s": 2.0,
    "trainer/wait_fraction": 0.3,
    "rollout/time_idle": 0.2,
}


def rising(low: float, high: float, num: int = STEPS) -> list[float]:
    """With a little of what chance does."""
    return [low + (high - low) * at / (num - 1) + (0.02 if at % 2 else -0.02) for at in range(num)]


def run_of(
    series: Mapping[str, float | Sequence[float]] | None = None,
    *,
    num_steps: int = STEPS,
    alarms: Sequence[Kind] = (),
    **facts: Any,
) -> Observed:
    given = {"reward/mean": rising(0.2, 0.6, num_steps), **HEALTHY, **(series or {})}
    lines = {
        name: [(step, values if isinstance(values, float) else values[step - 1]) for step in range(1, num_steps + 1)]
        for name, values in given.items()
    }
    recent = {name: line[-RECENT:] for name, line in lines.items()}
    return Observed(recent=recent, whole=lines, alarms=frozenset(alarms), **facts)


def kinds_of(run: Observed) -> list[Kind]:
    return [found.kind for found in judge(run)]
