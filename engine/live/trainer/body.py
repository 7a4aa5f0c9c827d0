"""The trainer's body: trains, hands versions over through shared memory, and has checkpoints written in parallel. In an
evaluation-only job it just hands over weights.

Invariants:
- weights are copied once, and training pauses only for that copy;
- the brain decides about a checkpoint that failed to write; but a rank that died in the write, or memory that ran out,
  ends the trainer, since every later step and checkpoint would fail too;
- memory for a checkpoint's copy is prepared during the step that it saves, but not during the first step, after which
  the memory need of a step is known.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from engine.live.checkpoints.resuming import ResumePoint
from engine.live.checkpoints.writer import CheckpointWriter, Report
from engine.live.process.memory import is_out_of_memory
from engine.live.trainer.batch import batch_of
from engine.live.trainer.publishing import Publishing
from engine.live.trainer.ranks import RankFailed
from engine.pipeline.effects import (
    Effect,
    ForgetWeights,
    PublishWeights,
    RepublishWeights,
    SaveCheckpoint,
    TrainOn,
)
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_relay import WeightsOffered
from engine.pipeline.messages.to_trainer import BatchTrained, TrainerLoaded
from engine.pipeline.packed import Floats
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.lineage import BASE_WEIGHTS, WeightsId
from engine.process.progress import working
from engine.spec.checkpoint_manifest import CheckpointPart
from engine.training.port import Steps, Write
from engine.weights.port import WeightManifest

Post = Callable[[Address, Message], None]


class WeightsBody:
    tick_s = 0.5
    is_busy = False

    def __init__(
        self,
        *,
        brain: TrainerBrain,
        num_parameters: int,
        resume: ResumePoint | None,
        publishing: Publishing,
        post: Post,
        base: WeightManifest | None = None,
    ) -> None:
        """`base`: of the copy of the base weights that `publishing` has made already."""
        self.brain = brain
        self._num_parameters, self._resume = num_parameters, resume
        self._publishing, self._post = publishing, post
        self._manifests: dict[WeightsId, WeightManifest] = {} if base is None else {BASE_WEIGHTS: base}
        self._stall_s = 0.0

    def start(self) -> list[Message]:
        resume = self._resume
        return [
            TrainerLoaded(
                step=0 if resume is None else resume.step,
                num_parameters=self._num_parameters,
                progress=None if resume is None else resume.data_progress(),
                holds_base=BASE_WEIGHTS in self._manifests,
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
                self._manifests.pop(effect.weights, None)
                self._publishing.forget(effect.weights)
            case _:
                raise TypeError(f"{type(self).__name__} does not support {type(effect).__name__}")
        return []

    def work(self) -> list[Message]:
        return []

    def measure(self, now: float) -> list[Message]:
        return []

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _copy(self, effect: PublishWeights) -> None:
        started = time.perf_counter()
        with working("publish"):
            self._manifests[effect.weights] = self._publishing.publish(effect.weights)
        self._stall_s = time.perf_counter() - started

    def _offer(self, effect: PublishWeights | RepublishWeights) -> None:
        manifest = self._manifests[effect.weights]
        payload = self._publishing.payload(effect.weights)
        self._post(effect.to, WeightsOffered(manifest=manifest, pinned=effect.pinned, payload=payload))


class TrainerBody(WeightsBody):
    def __init__(
        self,
        *,
        brain: TrainerBrain,
        trainer: Steps,
        resume: ResumePoint | None,
        checkpoints: Path,
        publishing: Publishing,
        post: Post,
        report: Report,
        is_saved: Callable[[int], bool],
        base: WeightManifest | None = None,
    ) -> None:
        """`is_saved`: whether a step is followed by a checkpoint."""
        super().__init__(
            brain=brain,
            num_parameters=trainer.num_parameters,
            resume=resume,
            publishing=publishing,
            post=post,
            base=base,
        )
        self._trainer, self._checkpoints = trainer, checkpoints
        self._writer = CheckpointWriter(report)
        self._lost: Exception | None = None
        self._is_saved, self._has_trained = is_saved, False

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case TrainOn():
                return [self._train(effect)]
            case SaveCheckpoint():
                self._save(effect)
                return []
            case _:
                return super().perform(effect)

    def _train(self, effect: TrainOn) -> BatchTrained:
        if self._has_trained and self._is_saved(effect.step):
            self._trainer.get_ready_to_save()
        self._has_trained = True
        with working("step"):  # covers the optimizer; micro-batches report their own progress
            result = self._trainer.train_step(batch_of(effect.groups, effect.lineage, at=effect.step - 1))
        metrics = {**result.metrics, "trainer/handover_s": self._stall_s}
        logprobs = tuple(Floats(each.tobytes()) for each in result.begun_logprobs)
        return BatchTrained(step=effect.step, metrics=metrics, advantages=result.advantages, logprobs=logprobs)

    def _save(self, effect: SaveCheckpoint) -> None:
        folder = self._checkpoints / f"step-{effect.step:06d}"

        def prepare() -> Write:
            with working("checkpoint"):
                return partial(self._write, self._trainer.prepare_save(folder))

        self._writer.put(prepare, folder, step=effect.step, progress=effect.progress)

    def _write(self, write: Write) -> Mapping[str, CheckpointPart]:
        """Called on the writer's thread."""
        try:
            return write()
        except Exception as error:
            if isinstance(error, RankFailed) or is_out_of_memory(error):
                self._lost = error
            raise

    def on_written(self, message: Message) -> list[Message]:
        """Receives the writer's message, on the loop's thread."""
        if self._lost is not None:
            raise self._lost
        return [message]
