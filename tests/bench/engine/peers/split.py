"""A run's figure, and where a step's time goes: milliseconds of the clock, of a step on average.

Invariant: sequential work of a system adds up to its step; parallel work does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from statistics import median

from engine.scorecard.tables import Spread, Value, rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMs:
    step_ms: float
    generating_ms: float
    training_ms: float
    handover_ms: float
    """The transfer of weights, while training or generating pauses."""
    rollout_idle_ms: float
    """Nothing to generate: waits for prompts, new weights or tools."""
    trainer_idle_ms: float
    cpu_ms: float
    """Of all cores and processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    samples_per_s: float
    of_step: StepMs
    cpu_by_part: dict[str, float] = field(default_factory=dict)
    """Milliseconds of a step."""


def columns(runs: Sequence[Measured]) -> dict[str, Value]:
    parts = {each.name: median(getattr(run.of_step, each.name) for run in runs) for each in fields(StepMs)}
    samples = Spread.of([run.samples_per_s for run in runs])
    return {**samples.columns("samples_per_s"), **{name: rounded(ms) for name, ms in parts.items()}}


def waits_by_part(runs: Sequence[Measured]) -> str:
    """Medians; largest first."""
    names = dict.fromkeys(name for run in runs for name in run.cpu_by_part)
    by_part = {name: median(run.cpu_by_part.get(name, 0.0) for run in runs) for name in names}
    return ", ".join(f"{name} {ms:.0f}" for name, ms in sorted(by_part.items(), key=lambda each: -each[1]) if ms >= 0.5)
