"""The trainer's actor: loads, trains, copies weights into the object store, writes checkpoints.

Invariant: weights are copied once, into a flat buffer, and only that copy leaves the process.
"""

from collections.abc import Callable
from pathlib import Path

from engine.live.actor import BodyActor
from engine.live.body import Body
from engine.live.checkpoints import save_checkpoint
from engine.live.devices import claim_device
from engine.live.stored_weights import StoredBytes, store_bytes
from engine.pipeline.effects import (
    Effect,
    ForgetWeights,
    PublishWeights,
    RepublishWeights,
    SaveCheckpoint,
    TrainOn,
)
from engine.pipeline.messages import (
    RELAY,
    TRAINER,
    Address,
    BatchTrained,
    CheckpointFailed,
    Message,
    TrainerLoaded,
    WeightsOffered,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import Trajectory
from engine.pipeline.trainer import TrainerBrain
from engine.spec.job import JobSpec
from engine.training.port import Trainer, TrainingTrajectory
from engine.weights.port import WeightManifest

Post = Callable[[Address, Message], None]


class TrainerBody:
    tick_s = 0.5
    is_busy = False

    def __init__(
        self, *, plan: Plan, trainer: Trainer, num_parameters: int, start_step: int, checkpoints: Path, post: Post
    ) -> None:
        self.brain = TrainerBrain(plan)
        self._trainer = trainer
        self._num_parameters = num_parameters
        self._start_step = start_step
        self._checkpoints = checkpoints
        self._post = post
        self._offered: dict[int, tuple[WeightManifest, StoredBytes]] = {}

    def start(self) -> list[Message]:
        return [TrainerLoaded(step=self._start_step, num_parameters=self._num_parameters)]

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case PublishWeights():
                weights = self._trainer.snapshot(effect.version)
                self._offered[effect.version] = (weights.manifest, store_bytes(weights.buffer))
                self._offer(effect.version, pinned=effect.pinned)
            case RepublishWeights():
                self._offer(effect.version, pinned=effect.pinned)
            case ForgetWeights():
                self._offered.pop(effect.version, None)
            case TrainOn():
                return [self._train(effect)]
            case SaveCheckpoint():
                return [self._save(effect)]
            case _:
                raise TypeError(f"the trainer's body does not do {type(effect).__name__}")
        return []

    def work(self) -> list[Message]:
        return []

    def measure(self, now: float) -> list[Message]:
        return []

    def _offer(self, version: int, *, pinned: bool) -> None:
        manifest, payload = self._offered[version]
        self._post(RELAY, WeightsOffered(manifest=manifest, pinned=pinned, payload=payload))

    def _train(self, effect: TrainOn) -> BatchTrained:
        result = self._trainer.train_step(
            [
                _for_training(number, trajectory)
                for number, group in enumerate(effect.groups)
                for trajectory in group.trajectories
            ]
        )
        return BatchTrained(step=effect.step, metrics=result.metrics, advantages=result.advantages)

    def _save(self, effect: SaveCheckpoint) -> Message:
        folder = self._checkpoints / f"step-{effect.step:06d}"
        try:
            return save_checkpoint(self._trainer, folder, step=effect.step, progress=effect.progress)
        except OSError as error:  # a full or slow disk; the brain decides whether the run can go on without
            return CheckpointFailed(step=effect.step, reason=str(error))


def _for_training(group: int, trajectory: Trajectory) -> TrainingTrajectory:
    content = trajectory.content
    assert content is not None, f"{trajectory.key} came without its tokens"
    return TrainingTrajectory(
        group=group,
        prompt_ids=content.prompt_ids,
        response_ids=content.response_ids,
        behaviour_logprobs=content.logprobs,
        reward=trajectory.reward,
    )


class TrainerActor(BodyActor):
    def __init__(self, *, spec: JobSpec, checkpoints: Path, resume_folder: Path | None, start_step: int) -> None:
        self._spec, self._checkpoints = spec, checkpoints
        self._resume_folder, self._start_step = resume_folder, start_step
        super().__init__(name=TRAINER)

    def build(self) -> Body:
        device = claim_device()
        from engine.models.loading import resolve_model  # torch is imported on this thread, not before
        from engine.training.torch_trainer import TorchTrainer

        trainer = TorchTrainer(
            resolve_model(self._spec.model.source),
            optimizer=self._spec.optimizer,
            algorithm=self._spec.algorithm,
            temperature=self._spec.rollout.temperature,
            seed=self._spec.training.seed,
            device=device,
        )
        if self._resume_folder is not None:
            trainer.load(self._resume_folder)
        return TrainerBody(
            plan=Plan.from_spec(self._spec),
            trainer=trainer,
            num_parameters=trainer.num_parameters,
            start_step=self._start_step,
            checkpoints=self._checkpoints,
            post=self._send,
        )
