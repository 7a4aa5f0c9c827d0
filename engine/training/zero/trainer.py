"""Training in several processes with one device each: the losses of engine/training/step/loss.py, DeepSpeed's ZeRO.

Invariants:
- every rank makes the same calls with the same batch; rank 0 returns the result, the others something empty;
- an update happens for policy and critic on all ranks, or not at all: before it, all ranks check the losses and both
  gradients;
- a checkpoint is that of engine/training/torch_trainer.py: any number of ranks, stage or backend can resume from it.
  With the same ones the resume is bit for bit;
- each rank reads its own values of a model, writes its own part of a checkpoint and publishes its own values of a
  version; rank 0 alone reads a checkpoint's weights, one matrix at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.models.decoder import Decoder, DecoderConfig
from engine.models.families.trained_model import read_model_config
from engine.models.loading import companion_files, read_config, resolve_model, weight_files
from engine.policy.lineage import WeightsId
from engine.training.batch import TrainingBatch, Trajectories
from engine.training.checkpoint.content import TrainerProgress, read_progress
from engine.training.checkpoint.exact_state import random_streams, take_over_random_streams
from engine.training.checkpoint.rank_share import PublishedModel
from engine.training.checkpoint.saving import Saver
from engine.training.checkpoint.shares import files_with
from engine.training.checkpoint.stored_state import StoredState
from engine.training.checks import check_batch
from engine.training.optimizer.learning_rate import share_of_rate
from engine.training.parts.exact_dtype import check_dtypes
from engine.training.parts.layout import decoder_places, whole_shape
from engine.training.parts.lora import Adapter
from engine.training.parts.published import published
from engine.training.parts.trained import TrainedPart, critic_part, policy_part
from engine.training.port import Allocate, StepResult, Write
from engine.training.ranks.passes import CriticPass, PolicyPass, scores_of
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.activations import choose_activations, shape_of
from engine.training.step.loss import StepLoss
from engine.training.step.metrics import UpdateOutcome
from engine.training.step.micro_batch import MicroBatch
from engine.training.step.mini_batch import MicroLoss
from engine.training.step.models import StepModels, needs_critic, needs_reference
from engine.training.step.rounding import Rounding
from engine.training.step.scoring import Critic, TokenScores, dtype_of_products
from engine.training.zero.guest import ALONE, surroundings
from engine.training.zero.sharding import (
    Division,
    ShardedPart,
    base_shares,
    empty_decoder,
    fill,
    frozen,
    held_by_rank,
    held_values,
)
from engine.weights.port import Probe, WeightVersion


class DeepSpeedTrainer:
    def __init__(self, model_folder: Path, settings: TrainerSettings, *, device: str, world: World = ALONE) -> None:
        torch.manual_seed(settings.seed)
        self._settings, self._device, self._world = settings, torch.device(device), world
        self._division = Division(stage=settings.trainer.zero_stage, world=world, device=device)
        self._folder, self._config = model_folder, _read_decoder_config(model_folder)
        _refuse_mixture(self._config)
        self._progress = TrainerProgress.begin(settings.algorithm, settings.trainer)
        self._parts: list[ShardedPart] = []
        self._modules: dict[str, nn.Module] = {}
        world.enter(device, surroundings())
        try:
            models = self._divide()
            self._saver = self._make_saver()
            self._check_dtypes()
        except BaseException:
            self.close()
            raise
        self._step_loss = StepLoss(
            settings,
            models=models,
            device=device,
            num_weights=self._num_parameters,
            attention_width=self._config.attention_width,
            rounding=Rounding.between(
                shape_of(self._config),
                published=self._config.dtype,
                products=dtype_of_products(settings.trainer.compute_dtype, self._device),
            ),
            ranks=world,
        )

    def _divide(self) -> StepModels:
        settings, algorithm = self._settings, self._settings.algorithm
        self._model = self._modules["policy"] = self._loaded()
        self._num_parameters = sum(whole_shape(parameter).numel() for parameter in self._model.parameters())
        self._adapter = Adapter.from_spec(self._model, settings.trainer, base=self._folder)
        self.published = published(self._model, self._adapter, held_values, held=held_by_rank(self._division))
        part = policy_part(self._model, self._adapter, settings.optimizer)
        policy = scores_of(self._shard(part, PolicyPass(self._model, settings)))
        critic = None
        if needs_critic(algorithm):
            values = self._modules["critic"] = Critic(self._loaded())
            critic = self._shard(critic_part(values, algorithm), CriticPass(values, settings))
        reference = self._make_reference(policy) if needs_reference(algorithm) else None
        teacher = self._make_teacher(resolve_model(algorithm.teacher.source)) if algorithm.has_teacher else None
        return StepModels(policy=policy, reference=reference, teacher=teacher, critic=critic)

    def _shard(self, part: TrainedPart, module: nn.Module) -> Callable[..., Any]:
        self._check_dtypes()  # before DeepSpeed, whose own assertion has no message
        self._parts.append(ShardedPart(part, module, self._settings.optimizer, self._division))
        return self._parts[-1].forward

    def _make_reference(self, policy: Callable[[MicroBatch], TokenScores]) -> Callable[[MicroBatch], TokenScores]:
        adapter = self._adapter
        if adapter is None:
            model = self._modules["reference"] = self._loaded()
            return scores_of(frozen(PolicyPass(model, self._settings), self._division))

        def base_scores(batch: MicroBatch) -> TokenScores:
            with adapter.base_only():
                return policy(batch)

        return base_scores

    def _make_teacher(self, folder: Path) -> Callable[[MicroBatch], TokenScores]:
        model = self._modules["teacher"] = self._loaded(folder)
        return scores_of(frozen(PolicyPass(model, self._settings), self._division))

    def _loaded(self, folder: Path | None = None) -> Decoder:
        """The model of `folder`, or the job's."""
        folder = folder or self._folder
        model = empty_decoder(_read_decoder_config(folder), self._division)
        model.hold_activations(choose_activations(self._settings, self._config, self._device))
        with StoredState(weight_files(folder)) as stored:
            fill(model, stored, self._division)
        return model

    def _check_dtypes(self) -> None:
        check_dtypes(self._modules, torch.float32)

    def close(self) -> None:
        for part in self._parts:
            part.close()
        self._parts.clear()
        self._modules.clear()
        self._world.leave()

    @property
    def num_parameters(self) -> int:
        """The published model's."""
        return self._num_parameters

    # One step ----------------------------------------------------------------------------------------------------

    def train_step(self, trajectories: Trajectories) -> StepResult:
        batch = TrainingBatch.of(trajectories)
        check_batch(batch, vocab_size=self._config.vocab_size, max_positions=self._config.max_positions)
        step = self._step_loss.begin(batch)
        metrics = step.train(backward=self._backward, update=self._update)
        return StepResult(metrics=metrics, advantages=step.advantages, begun_logprobs=step.begun_logprobs())

    def _backward(self, losses: MicroLoss) -> None:
        for part, loss in zip(self._parts, losses.of_parts, strict=True):
            part.backward(loss, is_last=losses.is_last)

    def _update(self, finite: bool) -> UpdateOutcome:
        if not (finite and self._have_finite_gradients()):
            for part in self._parts:
                part.spoil_gradients()
        share = share_of_rate(self._settings, self._progress.num_updates)
        outcomes = {part.prefix: part.step(share) for part in self._parts}
        updated = {outcome.updated for outcome in outcomes.values()}
        assert len(updated) == 1, "policy and critic did not agree whether to make the update"
        self._progress = self._progress.after(updated=all(updated))
        return UpdateOutcome(
            updated=all(updated),
            grad_norms={prefix: outcome.grad_norm for prefix, outcome in outcomes.items()},
            learning_rate=self._settings.optimizer.learning_rate * share,
        )

    def _have_finite_gradients(self) -> bool:
        """The same answer on every rank. True for a single part, whose own step checks."""
        return len(self._parts) == 1 or all(part.has_finite_gradients() for part in self._parts)

    # Weights and checkpoints -------------------------------------------------------------------------------------

    def snapshot(self, weights: WeightsId, *, allocate: Allocate | None = None) -> WeightVersion:
        """With several ranks: this rank's values, and zeros for the others'."""
        return self.published.pack(weights, allocate)

    def probe(self) -> Probe:
        return self._step_loss.probe(self._config.vocab_size, self._config.max_positions)

    def get_ready_to_save(self) -> None:
        self._saver.get_ready([part.shares() for part in self._parts])

    def prepare_save(self, folder: Path) -> Write:
        """Copies the state; the returned call writes this rank's part, together with the other ranks."""
        shares = [part.shares() for part in self._parts]
        return self._saver.prepare(folder, shares, random_streams(self._device), self._progress)

    def load(self, folder: Path) -> None:
        progress, files = read_progress(folder, self._config, current=self._progress, world=self._world)
        with StoredState(files) as stored:
            for part in self._parts:
                part.restore(stored, num_updates=progress.num_updates)
            take_over_random_streams(stored.tensors("random/"), self._device, self._world.send)
        self._check_dtypes()
        self._progress = progress

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]:
        """The files that `load` reads on this rank, given each file's tensor names. Rank 0 sends the weights, so it
        needs every file."""
        return files_with([part.shares() for part in self._parts], stored) if self._world.index else list(stored)

    def _make_saver(self) -> Saver:
        adapter, base = self._adapter, {} if self._adapter is None else self._adapter.base
        places = decoder_places(self._config, base or dict(self._model.named_parameters()))
        published = PublishedModel(
            companions=companion_files(self._folder),
            dtype=self._config.dtype,
            places=places,
            adapter=adapter,
            base={} if adapter is None else base_shares(adapter, places, self._world),
        )
        return Saver(published, self._world, self._device)


def _read_decoder_config(folder: Path) -> DecoderConfig:
    try:
        return read_config(folder)
    except ValueError as error:
        read_model_config(folder)  # raises its own error for a model that no trainer supports
        raise ValueError(f"trainer.backend must be torch for this model, got deepspeed: {error}") from error


def _refuse_mixture(config: DecoderConfig) -> None:
    if config.mixture is not None:
        raise ValueError(
            "trainer.backend: deepspeed trains dense models, got a mixture of "
            f"{config.mixture.num_experts} experts; set it to torch"
        )
