"""Metrics at a checkpoint's step, to rank checkpoints by and to show.

The series belong to an app above this one, which fills the port `values_at`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from backend.checkpoints.models import Checkpoint
from backend.jobs.models import Job
from backend.ports import Port

KEPT: Final = ("reward/mean", "evaluation/reward")


class ValuesAtStep(Protocol):
    def __call__(self, job: Job, *, step: int, attempt: int, names: Iterable[str]) -> Mapping[str, float]:
        """Values of that attempt, or of the last one before it that did the step."""


values_at: Port[ValuesAtStep] = Port("what was measured at a step")


def metrics_at(checkpoint: Checkpoint, names: Iterable[str] = KEPT) -> Mapping[str, float]:
    """For a step that was trained again: the values of the checkpoint's own attempt, or of the last one before."""
    return values_at()(checkpoint.job, step=checkpoint.step, attempt=checkpoint.attempt, names=names)
