"""Training in one process on one device: AdamW on the losses of engine/training/step/loss.py.

Invariants:
- an update is atomic: if a loss or a gradient is not finite, all weights (the critic's too), moments and the learning
  rate stay as they were, and `train/skipped` counts the update;
- weights are float32, whatever dtype rollouts run in: at RL learning rates most updates are below bfloat16's
  resolution and would be lost;
- the reference is the model that the job began with, also after a resume; the teacher is the model in its folder;
- `load` resumes from a saved state bit for bit, on the same device and library versions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel, load_model
from engine.models.loading import companion_files, resolve_model
from engine.models.routes import RouteFormat
from engine.policy.lineage import WeightsId
from engine.training.batch import TrainingBatch, Trajectories
from engine.training.checkpoint.content import TrainerProgress, read_progress
from engine.training.checkpoint.exact_state import random_streams, restore_random_streams, restore_shares
from engine.training.checkpoint.rank_share import PublishedModel
from engine.training.checkpoint.saving import Saver
from engine.training.checkpoint.shares import PartShares, Share, files_with
from engine.training.checkpoint.stored_state import StoredState
from engine.training.checks import check_batch
from engine.training.optimizer.fused_adamw import FusedAdamW
from engine.training.optimizer.learning_rate import share_of_rate
from engine.training.parts.exact_dtype import check_dtypes
from engine.training.parts.layout import decoder_places, places_of
from engine.training.parts.lora import Adapter
from engine.training.parts.published import published
from engine.training.parts.trained import MOMENTS, TrainedPart, critic_part, policy_part
from engine.training.port import Allocate, StepResult, Write
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.activations import choose_activations, shape_of
from engine.training.step.loss import StepLoss
from engine.training.step.metrics import UpdateOutcome
from engine.training.step.micro_batch import MicroBatch
from engine.training.step.mini_batch import MicroLoss
from engine.training.step.models import StepModels, needs_critic, needs_reference
from engine.training.step.rounding import Rounding
from engine.training.step.scoring import Critic, TokenScores, computing_in, dtype_of_products, score_tokens
from engine.weights.port import Probe, WeightVersion

# This trainer has no other ranks, and enters no process group.
ALONE: Final = World.alone()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizedPart:
    part: TrainedPart
    optimizer: FusedAdamW

    def shares(self, *, is_filled: bool = True) -> PartShares:
        """The whole state. If not `is_filled`, only its shapes matter, not its values."""
        part = self.part
        places = places_of(part.parameters, part.views)
        values = {"master": {name: parameter.detach() for name, parameter in part.parameters.items()}}
        for moment in MOMENTS:
            values[moment] = {
                name: self.optimizer.moment_of(each, moment, is_filled=is_filled)
                for name, each in part.parameters.items()
            }
        kinds = {
            kind: {name: Share.whole(places[name], each) for name, each in named.items()}
            for kind, named in values.items()
        }
        return PartShares(part=part, kinds=kinds)

    def take(self, shares: PartShares) -> None:
        """Takes moments from `shares`, which come from `shares()` and have been filled since."""
        for moment in MOMENTS:
            for name, share in shares.kinds[moment].items():
                self.optimizer.take_moment(self.part.parameters[name], moment, share.values)


class TorchTrainer:
    def __init__(self, model_folder: Path, settings: TrainerSettings, *, device: str) -> None:
        torch.manual_seed(settings.seed)
        algorithm, trainer = settings.algorithm, settings.trainer
        self._settings, self._optimizer_spec = settings, settings.optimizer
        self._device = torch.device(device)
        self._folder = model_folder
        self._model = load_model(model_folder, device=device, dtype=torch.float32)
        self._num_parameters, num_active_parameters = self._model.num_parameters, self._model.num_active_parameters
        self._adapter = Adapter.from_spec(self._model, trainer, base=model_folder)
        self._published = published(self._model, self._adapter, lambda parameter, _: parameter.detach().reshape(-1))
        self._reference = self._load_reference(model_folder) if needs_reference(algorithm) else None
        self._teacher = self._load_frozen(resolve_model(algorithm.teacher.source)) if algorithm.has_teacher else None
        self._critic = (
            Critic(load_model(model_folder, device=device, dtype=torch.float32)) if needs_critic(algorithm) else None
        )
        for model in (self._model, *(() if self._critic is None else (self._critic.trunk,))):
            model.hold_activations(choose_activations(settings, self._model.config, self._device))
        parts = [policy_part(self._model, self._adapter, settings.optimizer)]
        if self._critic is not None:
            parts.append(critic_part(self._critic, algorithm))
        self._parts = [OptimizedPart(part=part, optimizer=FusedAdamW.of(part, settings.optimizer)) for part in parts]
        self._progress = TrainerProgress.begin(algorithm, trainer)
        self._step_loss = StepLoss(
            settings,
            models=StepModels(
                policy=self._score_policy,
                reference=self._score_reference if needs_reference(algorithm) else None,
                teacher=None if self._teacher is None else self._make_scorer(self._teacher),
                critic=self._score_values if self._critic else None,
            ),
            device=device,
            num_weights=num_active_parameters,
            attention_width=self._model.config.attention_width,
            route_format=RouteFormat.of(self._model.config.mixture),
            rounding=Rounding.between(
                shape_of(self._model.config),
                published=self._model.config.dtype,
                products=dtype_of_products(settings.trainer.compute_dtype, self._device),
            ),
        )
        self._saver = Saver(self._describe_published(), ALONE, self._device)
        self._check_dtypes()

    def _check_dtypes(self) -> None:
        models = {
            "policy": self._model,
            "critic": self._critic,
            "reference": self._reference,
            "teacher": self._teacher,
        }
        check_dtypes({role: model for role, model in models.items() if model is not None}, torch.float32)

    @property
    def num_parameters(self) -> int:
        """The published model's."""
        return self._num_parameters

    # One step ----------------------------------------------------------------------------------------------------

    def train_step(self, trajectories: Trajectories) -> StepResult:
        batch = TrainingBatch.of(trajectories)
        config = self._model.config
        check_batch(batch, vocab_size=config.vocab_size, max_positions=config.max_positions)
        self._drop_gradients()
        step = self._step_loss.begin(batch)
        metrics = step.train(backward=self._backward, update=self._update)
        return StepResult(metrics=metrics, advantages=step.advantages, begun_logprobs=step.begun_logprobs())

    def _backward(self, losses: MicroLoss) -> None:
        for loss in losses.of_parts:
            loss.backward()  # type: ignore[no-untyped-call]

    def _update(self, finite: bool) -> UpdateOutcome:
        norms = {each.part.prefix: self._clip(each.part) for each in self._parts}
        share = share_of_rate(self._settings, self._progress.num_updates)
        updated = finite and all(map(math.isfinite, norms.values()))
        if updated:
            self._apply_update(share)
        self._drop_gradients()
        self._progress = self._progress.after(updated=updated)
        return UpdateOutcome(
            updated=updated, grad_norms=norms, learning_rate=self._optimizer_spec.learning_rate * share
        )

    def _score_policy(self, batch: MicroBatch) -> TokenScores:
        return self._score(self._model, batch)

    def _score_reference(self, batch: MicroBatch) -> TokenScores:
        with nullcontext() if self._adapter is None else self._adapter.base_only():
            return self._score(self._reference or self._model, batch)

    def _make_scorer(self, teacher: TrainedModel) -> Callable[[MicroBatch], TokenScores]:
        return partial(self._score, teacher)

    def _score(self, model: TrainedModel, batch: MicroBatch) -> TokenScores:
        settings = self._settings
        return score_tokens(
            model,
            batch,
            temperature=settings.temperature,
            compute_dtype=settings.trainer.compute_dtype,
            train_entropy=settings.algorithm.entropy_coefficient > 0.0,
        )

    def _score_values(self, batch: MicroBatch) -> Tensor:
        assert self._critic is not None
        with computing_in(self._settings.trainer.compute_dtype, self._device):
            values_N: Tensor = self._critic(batch)
        return values_N

    def _clip(self, part: TrainedPart) -> float:
        return nn.utils.clip_grad_norm_(part.parameters.values(), self._optimizer_spec.max_grad_norm).item()

    def _drop_gradients(self) -> None:
        for each in self._parts:
            each.optimizer.zero_grad()

    def _apply_update(self, share: float) -> None:
        for each in self._parts:
            for group in each.optimizer.groups:
                group.lr = group.full_lr * share
            each.optimizer.step()

    # Weights and checkpoints -------------------------------------------------------------------------------------

    def snapshot(self, weights: WeightsId, *, allocate: Allocate | None = None) -> WeightVersion:
        return self._published.pack(weights, allocate)

    def probe(self) -> Probe:
        return self._step_loss.probe(self._model.config.vocab_size, self._model.config.max_positions)

    def get_ready_to_save(self) -> None:
        self._saver.get_ready([part.shares(is_filled=False) for part in self._parts])

    def prepare_save(self, folder: Path) -> Write:
        shares = [part.shares() for part in self._parts]
        return self._saver.prepare(folder, shares, random_streams(self._device), self._progress)

    def load(self, folder: Path) -> None:
        progress, files = read_progress(folder, self._model.config, current=self._progress, world=ALONE)
        with StoredState(files) as stored:
            for each in self._parts:
                for parameter in each.part.parameters.values():
                    each.optimizer.reset(parameter, num_updates=progress.num_updates)
            shares = [part.shares() for part in self._parts]
            restore_shares(shares, stored)
            for each, filled in zip(self._parts, shares, strict=True):
                each.take(filled)
            restore_random_streams(stored.tensors("random/"), self._device)
        self._check_dtypes()
        self._progress = progress

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]:
        """The files that `load` reads, given each file's tensor names."""
        return files_with([part.shares() for part in self._parts], stored)

    def _describe_published(self) -> PublishedModel:
        config, base = self._model.config, {} if self._adapter is None else self._adapter.base
        places = decoder_places(config, base or dict(self._model.named_parameters()))
        return PublishedModel(
            companions=companion_files(self._folder),
            dtype=config.dtype,
            places=places,
            adapter=self._adapter,
            base={name: Share.whole(places[name], values) for name, values in base.items()},
        )

    def _load_reference(self, model_folder: Path) -> TrainedModel | None:
        """None with an adapter: the reference is then the policy without its adapter."""
        return None if self._adapter is not None else self._load_frozen(model_folder)

    def _load_frozen(self, folder: Path) -> TrainedModel:
        return load_model(folder, device=str(self._device), dtype=torch.float32).requires_grad_(False)
