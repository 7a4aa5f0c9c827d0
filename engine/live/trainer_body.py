"""The trainer's body: trains, hands versions over through shared memory, has checkpoints written beside training.

Invariant: weights are copied once, and that copy is all that training stands still for.
"""

import time
from collections.abc import Callable
from pathlib import Path

from engine.live.checkpoint_writer import CheckpointWriter, Told
from engine.live.checkpoints import ResumePoint
from engine.live.handover import Handover
from engine.pipeline.effects import (
    Effect,
    ForgetWeights,
    PublishWeights,
    RepublishWeights,
    SaveCheckpoint,
    TrainOn,
)
from engine.pipeline.messages import Address, BatchTrained, Message, TrainerLoaded
from engine.pipeline.records import Trajectory
from engine.pipeline.relay_messages import WeightsOffered
from engine.pipeline.trainer import TrainerBrain
from engine.policy.lineage import Lineage, WeightsId
from engine.training.port import Trainer, TrainingTrajectory
from engine.weights.port import WeightManifest

Post = Callable[[Address, Message], None]


class TrainerBody:
    tick_s = 0.5
    is_busy = False

    def __init__(
        self,
        *,
        brain: TrainerBrain,
        trainer: Trainer,
        resume: ResumePoint | None,
        checkpoints: Path,
        handover: Handover,
        post: Post,
        told: Told,
    ) -> None:
        self.brain = brain
        self._trainer, self._resume, self._checkpoints = trainer, resume, checkpoints
        self._handover, self._post = handover, post
        self._writer = CheckpointWriter(told)
        self._manifests: dict[int, WeightManifest] = {}
        self._stall_s = 0.0

    def start(self) -> list[Message]:
        resume = self._resume
        return [
            TrainerLoaded(
                step=0 if resume is None else resume.step,
                num_parameters=self._trainer.num_parameters,
                progress=None if resume is None else resume.data_progress(),
            )
        ]

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case PublishWeights():
                self._copy(effect)
                self._offer(effect)
            case RepublishWeights():
                self._offer(effect)
            case ForgetWeights():
                manifest = self._manifests.pop(effect.version, None)
                if manifest is not None:
                    self._handover.forget(manifest.id)
            case TrainOn():
                return [self._train(effect)]
            case SaveCheckpoint():
                self._save(effect)
            case _:
                raise TypeError(f"the trainer's body does not do {type(effect).__name__}")
        return []

    def work(self) -> list[Message]:
        return []

    def measure(self, now: float) -> list[Message]:
        return []

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _copy(self, effect: PublishWeights) -> None:
        started = time.perf_counter()
        weights = self._trainer.snapshot(effect.version, epoch=effect.epoch, allocate=self._handover.allocate)
        self._handover.keep(weights)
        self._manifests[effect.version] = weights.manifest
        self._stall_s = time.perf_counter() - started

    def _offer(self, effect: PublishWeights | RepublishWeights) -> None:
        manifest = self._manifests[effect.version]
        payload = self._handover.payload(WeightsId(effect.epoch, effect.version))
        self._post(effect.to, WeightsOffered(manifest=manifest, pinned=effect.pinned, payload=payload))

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _train(self, effect: TrainOn) -> BatchTrained:
        consumed_by = effect.step - 1
        result = self._trainer.train_step(
            [
                _for_training(number, trajectory, effect.lineage, consumed_by)
                for number, group in enumerate(effect.groups)
                for trajectory in group.trajectories
            ]
        )
        metrics = {**result.metrics, "trainer/handover_s": self._stall_s}
        return BatchTrained(step=effect.step, metrics=metrics, advantages=result.advantages)

    def _save(self, effect: SaveCheckpoint) -> None:
        folder = self._checkpoints / f"step-{effect.step:06d}"
        write = self._trainer.prepare_save(folder)
        self._writer.put(write, folder, step=effect.step, progress=effect.progress)


def _for_training(number: int, trajectory: Trajectory, lineage: Lineage, consumed_by: int) -> TrainingTrajectory:
    content = trajectory.content
    assert content is not None, f"{trajectory.key} came without its tokens"
    if trajectory.runs:
        staleness = tuple(
            age for run in trajectory.runs for age in (lineage.staleness(run.weights, at=consumed_by),) * run.num_tokens
        )
    else:
        staleness = (lineage.staleness(trajectory.weights, at=consumed_by),) * len(content.response_ids)
    return TrainingTrajectory(
        group=number,
        prompt_ids=content.prompt_ids,
        response_ids=content.response_ids,
        behaviour_logprobs=content.logprobs,
        reward=trajectory.reward,
        written=content.written,
        staleness=staleness,
        cut=trajectory.cut,
    )
