"""What was measured at a checkpoint's step: to choose the best by, and to show beside it."""

from collections.abc import Iterable, Mapping
from typing import Final

from backend.checkpoints.models import Checkpoint

KEPT: Final = ("reward/mean", "evaluation/reward")


def metrics_at(checkpoint: Checkpoint, names: Iterable[str] = KEPT) -> Mapping[str, float]:
    """A step that was trained again counts as the checkpoint's own attempt had it, or the last one before."""
    found: dict[str, float] = {}
    for series in checkpoint.job.series.filter(name__in=[*names]):
        points = series.points.filter(step=checkpoint.step, attempt__lte=checkpoint.attempt)
        value = points.order_by("-attempt").values_list("value", flat=True).first()
        if value is not None:
            found[series.name] = value
    return found
