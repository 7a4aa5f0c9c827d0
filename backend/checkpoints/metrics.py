"""Measures at a checkpoint's step: to choose the best by, and to show beside it.

The series belong to an app above this one: it fills the port `values_at`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from backend.checkpoints.models import Checkpoint
from backend.jobs.models import Job
from backend.ports import Port

KEPT: Final = ("reward/mean", "evaluation/reward")


class ValuesAtStep(Protocol):
    def __call__(self, job: Job, *, step: int, attempt: int, names: Iterable[str]) -> Mapping[str, float]:
        """As that attempt had them, or the last one before it that did the step."""


values_at: Port[ValuesAtStep] = Port("what was measured at a step")


def metrics_at(checkpoint: Checkpoint, names: Iterable[str] = KEPT) -> Mapping[str, float]:
    """A step that was trained again counts as the checkpoint's own attempt had it, or the last one before."""
    return values_at()(checkpoint.job, step=checkpoint.step, attempt=checkpoint.attempt, names=names)
