"""The trainer's actor: builds the trainer of the spec, alone or with other ranks, or a holder that only hands out
weights for an evaluation."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.live.assets.job_assets import JobAssets
from engine.live.body.actor import BodyActor
from engine.live.body.loop import Body
from engine.live.checkpoints.apart import load_alone
from engine.live.checkpoints.resuming import ResumePoint, go_back, open_checkpoint
from engine.live.process.devices import claim_device
from engine.live.process.fitting import check_fit
from engine.live.process.links import Links
from engine.live.process.memory import arithmetic
from engine.pipeline.messages.addresses import TRAINER
from engine.pipeline.messages.to_driver import CheckpointReported
from engine.pipeline.plan import Plan
from engine.pipeline.trainer.brain import TrainerBrain
from engine.spec.job import JobSpec
from engine.training.checkpoint.folder import CheckpointUnverified
from engine.training.port import Steps
from engine.training.settings import TrainerSettings

if TYPE_CHECKING:  # they import torch
    from engine.live.trainer.publishing import Publishing
    from engine.live.trainer.rank_actor import MakeTrainer
    from engine.live.weights.handover import Handover

log = logging.getLogger(__name__)

Load = Callable[[Path], None]
"""Loads a checkpoint, or raises `CheckpointUnverified` and changes nothing."""


class TrainerActor(BodyActor):
    def __init__(
        self,
        *,
        spec: JobSpec,
        incarnation: int,
        checkpoints: Path,
        resume: ResumePoint | None,
        reported: CheckpointReported | None,
        links: Links,
        ranks: Sequence[Mapping[str, Any]],
        ranks_per_host: int,
        recordings: Path | None,
        recorded_step: tuple[int, Path] | None = None,
        assets: JobAssets | None = None,
    ) -> None:
        """`resume`: the attempt's starting point. `reported`: its newest checkpoint that was reported to the driver.
        `ranks`: Ray options of each rank after the first."""
        self._spec, self._incarnation = spec, incarnation
        self._checkpoints, self._resume, self._links, self._ranks = checkpoints, resume, links, ranks
        self._reported, self._ranks_per_host = reported, ranks_per_host
        self._recorded_step, self._device, self._assets = recorded_step, "cpu", assets
        built_with = {"spec": spec.model_dump(mode="json"), "epoch": incarnation}
        super().__init__(part=TRAINER, incarnation=incarnation, recordings=recordings, built_with=built_with)

    def build(self) -> Body:
        device = self._device = claim_device()
        from engine.models.loading import resolve_model  # torch is imported on this thread, not earlier
        from engine.training.replay.deterministic import fix_workspace

        if self._recorded_step is not None:
            fix_workspace()

        spec = self._spec
        if self._assets is not None:
            self._assets.ensure("model")
        folder = resolve_model(spec.model.source)
        teacher = None
        if spec.algorithm.has_teacher and not spec.only_evaluates:
            teacher = resolve_model(spec.algorithm.teacher.source)
        check_fit("trainer", spec, folder, device, teacher=teacher, devices_per_host=self._ranks_per_host)
        return self._build_body(folder, device)

    def memory_needed(self) -> str:
        return arithmetic(self._spec, part="trainer", device=self._device, devices_per_host=self._ranks_per_host)

    def _build_body(self, folder: Path, device: str) -> Body:
        from engine.live.trainer.body import TrainerBody, WeightsBody
        from engine.live.trainer.publishing import PublishingAlone
        from engine.live.weights.handover import Handover

        spec, links = self._spec, self._links
        brain = TrainerBrain(Plan.from_spec(spec), epoch=self._incarnation)
        handover = Handover(owner=f"{links.run}-trainer", listen=links.address(), token=links.token)
        if spec.only_evaluates:
            from engine.training.held_weights import HeldWeights

            held = HeldWeights(folder)
            self._load_start(partial(load_alone, held))
            return WeightsBody(
                brain=brain,
                num_parameters=held.num_parameters,
                resume=self._resume,
                publishing=PublishingAlone(held, handover),
                post=self._send,
            )
        trainer, load, publishing = self._make_trainer(folder, device, handover)
        self._load_start(load)
        return TrainerBody(
            brain=brain,
            trainer=self._wrap_recorded(trainer, folder),
            resume=self._resume,
            checkpoints=self._checkpoints,
            publishing=publishing,
            post=self._send,
            report=lambda message: self._loop.call(lambda body: body.on_written(message)),
            is_saved=Plan.from_spec(spec).checkpoints,
        )

    def _load_start(self, load: Load) -> None:
        """Loads the newest checkpoint that this attempt reported to the driver, else the attempt's starting point."""
        point = self._go_back(load) if self._incarnation else None
        if point is not None:
            self._resume = point
        elif self._resume is not None:
            if self._resume.origin is not None:  # the driver opened it on its own host
                self._resume = open_checkpoint(self._resume.origin)
            load(self._resume.folder)

    def _go_back(self, load: Load) -> ResumePoint | None:
        newest = self._reported
        point = go_back(self._checkpoints, load, reported=0 if newest is None else newest.step)
        if point is not None or newest is None or not newest.uri.startswith("s3://"):
            return point
        try:  # this host never had it, or kept only newer ones
            point = open_checkpoint(newest.uri)
            load(point.folder)
        except CheckpointUnverified as error:
            log.warning("skipped an unverified checkpoint: %s", error)
            return None
        return point

    def _wrap_recorded(self, trainer: Steps, model: Path) -> Steps:
        if self._recorded_step is None:
            return trainer
        from engine.training.replay.recording import AskedStep, RecordedTrainer

        step, folder = self._recorded_step
        spec = self._spec.model_dump(mode="json")
        recorded = AskedStep(
            step=step,
            folder=folder,
            spec=spec,
            model=model,
            num_ranks=1 + len(self._ranks),
            ranks_per_host=self._ranks_per_host if self._spec.trainer.shard_within == "node" else None,
        )
        return RecordedTrainer(trainer, recorded, steps_before=0 if self._resume is None else self._resume.step)

    def _make_trainer(self, folder: Path, device: str, handover: "Handover") -> tuple[Steps, Load, "Publishing"]:
        from engine.live.trainer.publishing import PublishingAlone, PublishingTogether

        make = self._maker(folder)
        if self._spec.trainer.backend == "torch" and not self._ranks:
            alone = make(device=device)
            return alone, partial(load_alone, alone), PublishingAlone(alone, handover, probe=alone.probe)
        from engine.live.trainer.ranks import RankGroup

        recorded = None if self._recorded_step is None else self._recorded_step[1]
        group = RankGroup(
            make,
            device=device,
            options=self._ranks,
            checkpoints=self._checkpoints,
            recorded=recorded,
            fetch=partial(self._assets.ensure, "model") if self._assets else None,
        )
        return group, group.load, PublishingTogether(group, handover, self._links)

    def _maker(self, folder: Path) -> "MakeTrainer":
        """Returns the factory of the trainer, or of each rank's."""
        from engine.training.factory import build_trainer

        return partial(build_trainer, folder, TrainerSettings.of(self._spec))
