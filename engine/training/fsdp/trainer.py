"""Training in several processes with one device each: the losses of engine/training/step/loss.py, torch's FSDP2.

Invariants:
- every rank makes the same calls with the same batch; rank 0 returns the result, the others something empty;
- an update happens for policy and critic on all ranks, or not at all: losses and gradient norms decide, which have the
  same bits on each rank;
- each rank reads its own rows of the job's model and of a checkpoint, and writes them to checkpoints and published
  versions: all of them, or its part where other ranks have the same rows;
- a checkpoint is that of engine/training/torch_trainer.py: any number of ranks or backend can resume from it. With the
  same ones the resume is bit for bit.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel, read_model_config
from engine.models.loading import companion_files, resolve_model, weight_files
from engine.models.routes import RouteFormat
from engine.policy.lineage import WeightsId
from engine.training.batch import TrainingBatch, Trajectories
from engine.training.checkpoint.content import TrainerProgress, read_progress
from engine.training.checkpoint.exact_state import random_streams, restore_shares, take_over_random_streams
from engine.training.checkpoint.rank_share import PublishedModel
from engine.training.checkpoint.saving import Saver
from engine.training.checkpoint.shares import files_with
from engine.training.checkpoint.stored_state import StoredState
from engine.training.checks import check_batch
from engine.training.fsdp.copies import Copies
from engine.training.fsdp.gradient_sums import sums_once
from engine.training.fsdp.sharding import ShardedPart, Sharding
from engine.training.optimizer.learning_rate import share_of_rate
from engine.training.parts.exact_dtype import check_dtypes
from engine.training.parts.layout import decoder_places, own_part
from engine.training.parts.lora import Adapter
from engine.training.parts.published import published
from engine.training.parts.trained import critic_part, policy_part
from engine.training.port import Allocate, StepResult, Write
from engine.training.ranks.passes import CriticPass, PolicyPass, scores_of
from engine.training.ranks.sequence_parallel import Sharers, refuse_heads
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.activations import choose_activations, shape_of
from engine.training.step.loss import StepLoss
from engine.training.step.metrics import UpdateOutcome
from engine.training.step.micro_batch import MicroBatch, whole_batch
from engine.training.step.mini_batch import MicroLoss
from engine.training.step.models import StepModels, needs_critic, needs_reference
from engine.training.step.rounding import Rounding
from engine.training.step.scoring import Critic, TokenScores, dtype_of_products
from engine.weights.port import Probe, WeightVersion

# The world of trainers that have no other ranks.
ALONE: Final = World.alone()


class FsdpTrainer:
    def __init__(self, model_folder: Path, settings: TrainerSettings, *, device: str, world: World = ALONE) -> None:
        torch.manual_seed(settings.seed)
        self._settings, self._device, self._world = settings, torch.device(device), world
        self._folder, self._config = model_folder, read_model_config(model_folder)
        self._progress = TrainerProgress.begin(settings.algorithm, settings.trainer)
        self._parts: list[ShardedPart] = []
        self._modules: dict[str, nn.Module] = {}
        world.enter(device)
        try:
            self._sharers = self._make_sharers(settings.trainer.sequence_parallel)
            copies = Copies.within(settings.trainer.shard_within, world)
            self._sharding = Sharding(
                world,
                self._device,
                dtype_of_products(settings.trainer.compute_dtype, self._device),
                copies,
                sums_once=sums_once(settings, self._config, self._device, copies, world),
            )
            with StoredState(weight_files(model_folder)) as stored:
                models = self._divide(stored)
            self._saver = self._make_saver()
            self._check_dtypes()
        except BaseException:
            self.close()
            raise
        self._step_loss = StepLoss(
            settings,
            models=models,
            device=device,
            num_weights=self._num_active_parameters,
            attention_width=self._config.attention_width,
            route_format=RouteFormat.of(self._config.mixture),
            rounding=Rounding.between(
                shape_of(self._config),
                published=self._config.dtype,
                products=dtype_of_products(settings.trainer.compute_dtype, self._device),
            ),
            ranks=world if self._sharers is None else self._sharers,
            share=whole_batch if self._sharers is None else self._sharers.share,
        )

    def _make_sharers(self, num_sharers: int) -> Sharers | None:
        refuse_heads(self._config, num_sharers=num_sharers)
        return Sharers(self._world, num_sharers=num_sharers) if num_sharers > 1 else None

    def _divide(self, stored: StoredState) -> StepModels:
        algorithm = self._settings.algorithm
        policy = self._make_policy(stored)
        critic = self._make_critic(stored) if needs_critic(algorithm) else None
        reference = self._make_reference(stored, policy) if needs_reference(algorithm) else None
        teacher = self._make_teacher(resolve_model(algorithm.teacher.source)) if algorithm.has_teacher else None
        return StepModels(policy=policy, reference=reference, teacher=teacher, critic=critic)

    def _make_policy(self, stored: StoredState) -> Callable[[MicroBatch], TokenScores]:
        settings, sharding = self._settings, self._sharding
        self._model = self._modules["policy"] = self._empty_model()
        self._num_parameters = self._model.num_parameters
        self._num_active_parameters = self._model.num_active_parameters
        self._places = decoder_places(self._config, dict(self._model.named_parameters()))
        self._adapter = Adapter.from_spec(self._model, settings.trainer, base=self._folder, device=self._device)
        self.published = published(self._model, self._adapter, sharding.values_at, held=sharding.written_span)
        whole_pass = PolicyPass(self._model, settings)
        sharding.divide(whole_pass, self._model)
        sharding.fill(dict(self._model.named_parameters()), self._places, stored)
        part = policy_part(self._model, self._adapter, settings.optimizer)
        self._parts.append(ShardedPart(part, settings.optimizer, sharding))
        return scores_of(whole_pass)

    def _make_critic(self, stored: StoredState) -> Callable[[MicroBatch], Tensor]:
        settings, sharding = self._settings, self._sharding
        critic = self._modules["critic"] = Critic(self._empty_model())
        whole_pass = CriticPass(critic, settings)
        sharding.divide(whole_pass, critic.trunk)
        trunk = dict(critic.trunk.named_parameters())
        sharding.fill(trunk, decoder_places(replace(self._config, tied=True), trunk), stored)  # it has no head
        nn.init.zeros_(own_part(critic.value_D))
        self._parts.append(ShardedPart(critic_part(critic, settings.algorithm), settings.optimizer, sharding))
        return whole_pass

    def _make_reference(
        self, stored: StoredState, policy: Callable[[MicroBatch], TokenScores]
    ) -> Callable[[MicroBatch], TokenScores]:
        adapter = self._adapter
        if adapter is None:
            model = self._modules["reference"] = self._empty_model()
            return self._make_frozen(model, stored)

        def base_scores(batch: MicroBatch) -> TokenScores:
            with adapter.base_only():
                return policy(batch)

        return base_scores

    def _make_teacher(self, folder: Path) -> Callable[[MicroBatch], TokenScores]:
        config = read_model_config(folder)
        refuse_heads(config, num_sharers=self._settings.trainer.sequence_parallel)
        # In its stored dtype: it is never updated, and a gather casts it to the same bits as it would from float32.
        model = self._sharding.empty_model(config, config.dtype)
        with StoredState(weight_files(folder)) as stored:
            return self._make_frozen(model, stored)

    def _make_frozen(self, model: TrainedModel, stored: StoredState) -> Callable[[MicroBatch], TokenScores]:
        whole_pass = PolicyPass(model.requires_grad_(False), self._settings)
        self._sharding.divide(whole_pass, model)
        parameters = dict(model.named_parameters())
        self._sharding.fill(parameters, decoder_places(model.config, parameters), stored)
        return scores_of(whole_pass)

    def _empty_model(self) -> TrainedModel:
        model = self._sharding.empty_model(self._config)
        model.hold_activations(choose_activations(self._settings, self._config, self._device))
        return model

    def _check_dtypes(self) -> None:
        check_dtypes(self._modules, torch.float32)

    def close(self) -> None:
        self._world.leave()

    @property
    def num_parameters(self) -> int:
        """The published model's."""
        return self._num_parameters

    # One step ----------------------------------------------------------------------------------------------------

    def train_step(self, trajectories: Trajectories) -> StepResult:
        batch = TrainingBatch.of(trajectories)
        check_batch(batch, vocab_size=self._config.vocab_size, max_positions=self._config.max_positions)
        self._drop_gradients()
        step = self._step_loss.begin(batch)
        metrics = step.train(backward=self._backward, update=self._update)
        return StepResult(metrics=metrics, advantages=step.advantages, begun_logprobs=step.begun_logprobs())

    def _backward(self, losses: MicroLoss) -> None:
        self._sharding.begin_backward(is_last=losses.is_last)
        for loss in losses.of_parts:
            loss.backward()  # type: ignore[no-untyped-call]

    def _update(self, finite: bool) -> UpdateOutcome:
        norms = {part.prefix: part.clip() for part in self._parts}
        share = share_of_rate(self._settings, self._progress.num_updates)
        updated = finite and all(map(math.isfinite, norms.values()))
        if updated:
            for part in self._parts:
                part.update(share)
        self._drop_gradients()
        self._progress = self._progress.after(updated=updated)
        rate = self._settings.optimizer.learning_rate * share
        return UpdateOutcome(updated=updated, grad_norms=norms, learning_rate=rate)

    def _drop_gradients(self) -> None:
        for part in self._parts:
            part.zero_grad()

    # Weights and checkpoints -------------------------------------------------------------------------------------

    def snapshot(self, weights: WeightsId, *, allocate: Allocate | None = None) -> WeightVersion:
        """With several ranks: this rank's values, and zeros for the others'."""
        return self.published.pack(weights, allocate)

    def probe(self) -> Probe:
        return self._step_loss.probe(self._config.vocab_size, self._config.max_positions)

    def get_ready_to_save(self) -> None:
        self._saver.get_ready([part.written(is_filled=False) for part in self._parts])

    def prepare_save(self, folder: Path) -> Write:
        """Copies the state; the returned call writes this rank's part, together with the other ranks."""
        shares = [part.written() for part in self._parts]
        return self._saver.prepare(folder, shares, random_streams(self._device), self._progress)

    def load(self, folder: Path) -> None:
        progress, files = read_progress(folder, self._config, current=self._progress, world=self._world)
        with StoredState(files) as stored:
            for part in self._parts:
                part.reset_moments(num_updates=progress.num_updates)
            shares = [part.shares() for part in self._parts]
            restore_shares(shares, stored)
            for part, filled in zip(self._parts, shares, strict=True):
                part.take(filled)
            take_over_random_streams(stored.tensors("random/"), self._device, self._world.send)
        self._check_dtypes()
        self._progress = progress

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]:
        """The files that `load` reads on this rank, given each file's tensor names."""
        return files_with([part.shares() for part in self._parts], stored)

    def _make_saver(self) -> Saver:
        base = {} if self._adapter is None else {name: own_part(each) for name, each in self._adapter.base.items()}
        published = PublishedModel(
            companions=companion_files(self._folder),
            dtype=self._config.dtype,
            places=self._places,
            adapter=self._adapter,
            base=self._sharding.written(self._sharding.shares(self._places, base)) if base else {},
        )
        return Saver(published, self._world, self._device)
