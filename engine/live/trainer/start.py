"""Where a trainer starts: the newest checkpoint that its attempt reported to the driver, else the attempt's own start.

    new trainer, with the base weights ──(their evaluation is due: copy them)──▶ load the checkpoint

Invariants:
- a trainer in the attempt's first incarnation loads the attempt's starting point;
- base weights are copied only before a checkpoint that has their evaluation as due, and at most once;
- a checkpoint that fails its verification changes nothing: the trainer still holds the base weights.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.live.checkpoints.resuming import ResumePoint, go_back, open_checkpoint
from engine.pipeline.messages.to_driver import CheckpointReported
from engine.policy.lineage import BASE_WEIGHTS
from engine.process.progress import working
from engine.training.checkpoint.folder import CheckpointUnverified
from engine.weights.port import WeightManifest

if TYPE_CHECKING:  # it imports torch
    from engine.live.trainer.publishing import Publishing

log = logging.getLogger(__name__)

Load = Callable[[Path], None]
"""Loads a checkpoint, or raises `CheckpointUnverified` and changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    point: ResumePoint | None
    """The checkpoint that was loaded; None: the trainer holds the base weights."""
    base: WeightManifest | None
    """Of the copy of the base weights; None: no copy was made."""


class Starter:
    def __init__(self, load: Load, publishing: "Publishing") -> None:
        """`publishing`: of the trainer that `load` fills."""
        self._load, self._publishing = load, publishing
        self._base: WeightManifest | None = None

    def start(self, resume: ResumePoint | None) -> Started:
        """From the attempt's starting point."""
        if resume is not None:
            if resume.origin is not None:  # the driver opened it on its own host
                resume = resume.model_copy(update={"folder": open_checkpoint(resume.origin).folder})
            self._load_point(resume)
        return self._started(resume)

    def start_again(
        self, resume: ResumePoint | None, *, checkpoints: Path, reported: CheckpointReported | None
    ) -> Started:
        """In a later incarnation. `checkpoints`: the attempt's folder; `reported`: the newest one reported to the
        driver."""
        point = self._go_back(checkpoints, reported)
        return self.start(resume) if point is None else self._started(point)

    def _go_back(self, checkpoints: Path, newest: CheckpointReported | None) -> ResumePoint | None:
        point = go_back(checkpoints, self._load_point, reported=0 if newest is None else newest.step)
        if point is not None or newest is None or not newest.uri.startswith("s3://"):
            return point
        try:  # this host never had it, or kept only newer ones
            point = open_checkpoint(newest.uri)
            self._load_point(point)
        except CheckpointUnverified as error:
            log.warning("skipped an unverified checkpoint: %s", error)
            return None
        return point

    def _load_point(self, point: ResumePoint) -> None:
        if point.progress.base_is_due and self._base is None:
            with working("publish"):
                self._base = self._publishing.publish(BASE_WEIGHTS)
        self._load(point.folder)

    def _started(self, point: ResumePoint | None) -> Started:
        if self._base is not None and (point is None or not point.progress.base_is_due):
            self._publishing.forget(BASE_WEIGHTS)  # made for a checkpoint that could not be loaded
            self._base = None
        return Started(point=point, base=self._base)
