"""The trainer's actor: builds the trainer of the spec, alone or with other ranks, or a holder that only hands out
weights for an evaluation."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.live.assets.job_assets import JobAssets
from engine.live.body.actor import BodyActor
from engine.live.body.loop import Body
from engine.live.body.recording import plain
from engine.live.checkpoints.apart import load_alone
from engine.live.checkpoints.resuming import ResumePoint
from engine.live.process.devices import claim_device
from engine.live.process.fitting import check_fit
from engine.live.process.links import Links
from engine.live.process.memory import arithmetic
from engine.live.trainer.start import Load, Starter
from engine.pipeline.messages.addresses import TRAINER
from engine.pipeline.messages.to_driver import CheckpointReported
from engine.pipeline.plan import Plan
from engine.pipeline.trainer.brain import TrainerBrain
from engine.spec.job import JobSpec
from engine.training.port import Steps
from engine.training.settings import TrainerSettings
from engine.weights.port import WeightManifest

if TYPE_CHECKING:  # they import torch
    from engine.live.trainer.publishing import Publishing
    from engine.live.trainer.rank_actor import MakeTrainer
    from engine.live.weights.handover import Handover


class TrainerActor(BodyActor):
    def __init__(
        self,
        *,
        spec: JobSpec,
        plan: Plan,
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
        self._spec, self._plan, self._incarnation = spec, plan, incarnation
        self._checkpoints, self._resume, self._links, self._ranks = checkpoints, resume, links, ranks
        self._reported, self._ranks_per_host = reported, ranks_per_host
        self._recorded_step, self._device, self._assets = recorded_step, "cpu", assets
        built_with = {"plan": plain(plan), "epoch": incarnation}
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
        brain = TrainerBrain(self._plan, epoch=self._incarnation)
        handover = Handover(owner=f"{links.run}-trainer", listen=links.address(), token=links.token)
        if spec.only_evaluates:
            from engine.training.held_weights import HeldWeights

            held = HeldWeights(folder)
            publishing: Publishing = PublishingAlone(held, handover)
            self._start(partial(load_alone, held), publishing)
            return WeightsBody(
                brain=brain,
                num_parameters=held.num_parameters,
                resume=self._resume,
                publishing=publishing,
                post=self._send,
            )
        trainer, load, publishing = self._make_trainer(folder, device, handover)
        base = self._start(load, publishing)
        return TrainerBody(
            brain=brain,
            trainer=self._wrap_recorded(trainer, folder),
            resume=self._resume,
            checkpoints=self._checkpoints,
            publishing=publishing,
            post=self._send,
            report=lambda message: self._loop.call(lambda body: body.on_written(message)),
            is_saved=self._plan.checkpoints,
            base=base,
        )

    def _start(self, load: Load, publishing: "Publishing") -> WeightManifest | None:
        """Loads the checkpoint; returns the manifest of the copy of the base weights, if their evaluation is due."""
        starter = Starter(load, publishing)
        if self._incarnation:
            started = starter.start_again(self._resume, checkpoints=self._checkpoints, reported=self._reported)
        else:
            started = starter.start(self._resume)
        self._resume = started.point
        return started.base

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
