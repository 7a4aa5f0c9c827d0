"""Where a run's time goes: notices, never alarms. A run that waits still learns, only later.

Shares are of the steps' own time, so other work in the pool does not count.
"""

from statistics import median
from typing import Final

from backend.verdicts.rules.finding import Finding, percent
from backend.verdicts.rules.observed import FEWEST, Observed

OVER: Final = 20
"""Steps: pace is a matter of cost, so it may be judged over more steps than an alarm."""
WAITS: Final = 0.90
"""Of a step. Generating answers costs several times what training on them does, so a trainer that waits two thirds or
four fifths of a step is normal. From nine tenths on, twice the replicas nearly halve a step (1 - 0.9 / 2), and the
trainer's devices are hardly used."""
IDLE: Final = 0.60
"""Half of the replicas would do the same work busy for four fifths of their time: fewer slow nothing down."""
ENVIRONMENT: Final = 0.50
SEGMENTS: Final = 2.0
"""Per trajectory. A segment repeats the whole conversation before it, so two are at least one and a half times the
tokens of one."""


def pace_of(run: Observed) -> Finding | None:
    """One side waits for the other only while the other works: if both are idle, neither is too small."""
    waits, idle = _usual(run, "trainer/wait_fraction"), _usual(run, "rollout/time_idle") or 0.0
    if (segments := _usual(run, "length/segments") or 0.0) >= SEGMENTS:
        return _reread(segments)
    if waits is None:
        return None
    if idle >= IDLE and waits < 1 - IDLE:
        return _starved_rollouts(idle)
    if waits >= WAITS and idle < IDLE:
        return _starved_trainer(waits, _usual(run, "rollout/time_environment") or 0.0)
    return None


def _starved_trainer(waits: float, environment: float) -> Finding:
    slow_tool = "Run more answers per replica (rollout.max_batch) or speed up the tool: replicas wait for the "
    return Finding(
        kind="starved_trainer",
        tone="notice",
        sentence=f"The trainer waits {percent(waits)} of its time for answers.",
        evidence=("trainer/wait_fraction", "throughput/tokens_per_s"),
        remedy=f"{slow_tool}environment {percent(environment)} of the time."
        if environment >= ENVIRONMENT
        else "Use more replicas (rollout.replicas) for shorter steps, or fewer trainer devices to save cost.",
    )


def _starved_rollouts(idle: float) -> Finding:
    return Finding(
        kind="starved_rollouts",
        tone="notice",
        sentence=f"The replicas are idle {percent(idle)} of the time, waiting for the trainer.",
        evidence=("rollout/time_idle", "trainer/step_s"),
        remedy="Use fewer replicas: same speed, lower cost. Or use the laminar schedule, which never waits, more "
        "trainer devices, or fewer updates per step.",
    )


def _reread(segments: float) -> Finding:
    return Finding(
        kind="retold",
        tone="notice",
        sentence=f"Each conversation is read and trained {segments:.3g} times, because the chat template changes "
        "earlier answers.",
        evidence=("length/segments", "trainer/step_s"),
        remedy="Set model.history to as_generated: earlier answers stay as generated, and each is read once.",
    )


def _usual(run: Observed, name: str) -> float | None:
    window = run.window(name, OVER)
    return median(window) if len(window) >= FEWEST else None
