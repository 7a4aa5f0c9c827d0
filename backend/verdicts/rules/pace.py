"""Where a run's time goes: notices, never alarms. A run that waits learns as well, only later.

A share is of the steps' own time, so what the pool is doing besides does not count.
"""

from statistics import median
from typing import Final

from backend.verdicts.rules.finding import Finding, percent
from backend.verdicts.rules.observed import FEWEST, Observed

OVER: Final = 20
"""Steps: a pace is a matter of cost, and may be looked at longer than a sickness."""
WAITS: Final = 0.90
"""Of a step. Writing answers costs several times what learning from them does, so a trainer that waits for two thirds
or four fifths of a step is no fault of a job's. From nine tenths on, twice the replicas nearly halve a step
(1 - 0.9 / 2), and the trainer's devices are hardly used: that is worth a word."""
IDLE: Final = 0.60
"""Half of the replicas would do the same work at four fifths of their time: nothing gets slower with fewer."""
ENVIRONMENT: Final = 0.50
SEGMENTS: Final = 2.0
"""Of a trajectory. A segment repeats the whole conversation before it, so two of them are at least half as many tokens
again as one."""


def pace_of(run: Observed) -> Finding | None:
    """One side waits for the other only where the other is at work: where both stand, neither is too small."""
    waits, idle = _usual(run, "trainer/wait_fraction"), _usual(run, "rollout/time_idle") or 0.0
    if (segments := _usual(run, "length/segments") or 0.0) >= SEGMENTS:
        return _retold(segments)
    if waits is None:
        return None
    if idle >= IDLE and waits < 1 - IDLE:
        return _starved_rollouts(idle)
    if waits >= WAITS and idle < IDLE:
        return _starved_trainer(waits, _usual(run, "rollout/time_environment") or 0.0)
    return None


def _starved_trainer(waits: float, environment: float) -> Finding:
    slow_tool = "More answers at once a replica (rollout.max_batch) or a faster tool: its replicas wait for the "
    return Finding(
        kind="starved_trainer",
        tone="notice",
        sentence=f"The trainer waits {percent(waits)} of its time for answers.",
        evidence=("trainer/wait_fraction", "throughput/tokens_per_s"),
        remedy=f"{slow_tool}environment {percent(environment)} of their time."
        if environment >= ENVIRONMENT
        else "More replicas (rollout.replicas) make its steps shorter, or fewer trainer devices cost less.",
    )


def _starved_rollouts(idle: float) -> Finding:
    return Finding(
        kind="starved_rollouts",
        tone="notice",
        sentence=f"The replicas stand idle {percent(idle)} of their time: they wait for the trainer.",
        evidence=("rollout/time_idle", "trainer/step_s"),
        remedy="Fewer replicas cost less at the same speed; or the schedule laminar, which waits for nobody, more "
        "trainer devices, or fewer updates a step.",
    )


def _retold(segments: float) -> Finding:
    return Finding(
        kind="retold",
        tone="notice",
        sentence=f"Each conversation is read and trained {segments:.3g} times, since the chat template changes earlier "
        "answers.",
        evidence=("length/segments", "trainer/step_s"),
        remedy="model.history as_generated keeps earlier answers as they were generated: a conversation is read once.",
    )


def _usual(run: Observed, name: str) -> float | None:
    window = run.window(name, OVER)
    return median(window) if len(window) >= FEWEST else None
