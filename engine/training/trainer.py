"""Training: AdamW on the losses of engine/training/step/loss.py, in one process or as one rank of several.

Invariants:
- every rank makes the same calls with the same batch; rank 0 returns the result, the others something empty;
- an update is atomic: if a loss or a gradient is not finite, all weights (the critic's too), moments and the learning
  rate stay as they were, and `train/skipped` counts the update;
- weights are float32, whatever dtype rollouts run in: at RL learning rates most updates are below bfloat16's
  resolution and would be lost;
- the reference is the model that the job began with, also after a resume; the teacher is the model in its folder;
- `load` resumes from the state that any number of ranks saved, by any sharding; bit for bit with the same ones, on the
  same device and library versions.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel
from engine.models.loading import companion_files, resolve_model
from engine.models.routes import RouteFormat
from engine.policy.lineage import WeightsId
from engine.training.batch import TrainingBatch, Trajectories
from engine.training.checkpoint.content import TrainerProgress, read_progress
from engine.training.checkpoint.exact_state import random_streams, restore_random_streams
from engine.training.checkpoint.rank_share import PublishedModel
from engine.training.checkpoint.saving import Saver
from engine.training.checkpoint.shares import Share
from engine.training.checkpoint.stored_state import StoredState
from engine.training.checks import check_batch
from engine.training.optimizer.learning_rate import share_of_rate
from engine.training.parts.exact_dtype import check_dtypes
from engine.training.parts.layout import Place, decoder_places, whole_shape
from engine.training.parts.lora import Adapter
from engine.training.parts.published import published
from engine.training.parts.trained import critic_part, policy_part
from engine.training.port import Allocate, StepResult, Write
from engine.training.ranks.passes import CriticPass, PolicyPass, scores_of
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.sharding import MakeSharding
from engine.training.step.activations import choose_activations, shape_of
from engine.training.step.loss import StepFactory
from engine.training.step.metrics import UpdateOutcome
from engine.training.step.micro_batch import MicroBatch
from engine.training.step.mini_batch import MicroLoss
from engine.training.step.models import StepModels, needs_critic, needs_reference
from engine.training.step.rounding import Rounding
from engine.training.step.scoring import Critic, TokenScores, dtype_of_products
from engine.weights.port import Probe, WeightVersion

ScoreTokens = Callable[[MicroBatch], TokenScores]


class Trainer:
    def __init__(
        self, model_folder: Path, settings: TrainerSettings, *, device: str, world: World, sharding: MakeSharding
    ) -> None:
        torch.manual_seed(settings.seed)
        self._settings, self._device, self._folder = settings, torch.device(device), model_folder
        self._progress = TrainerProgress.begin(settings.algorithm, settings.trainer)
        self._modules: dict[str, nn.Module] = {}
        self._sharding = sharding(model_folder, settings, device=device, world=world)
        try:
            models = self._make_models()
            self._saver = Saver(self._describe_published(), self._sharding.world, self._device)
            self._check_dtypes()
        except BaseException:
            self.close()
            raise
        self._steps = self._make_step_factory(models)

    # Models ------------------------------------------------------------------------------------------------------

    def _make_models(self) -> StepModels:
        algorithm = self._settings.algorithm
        policy = self._make_policy()
        critic = self._make_critic() if needs_critic(algorithm) else None
        reference = self._make_reference(policy) if needs_reference(algorithm) else None
        teacher = self._make_teacher(resolve_model(algorithm.teacher.source)) if algorithm.has_teacher else None
        return StepModels(policy=policy, reference=reference, teacher=teacher, critic=critic)

    def _make_policy(self) -> ScoreTokens:
        settings, sharding = self._settings, self._sharding
        model = self._model = self._modules["policy"] = self._load_trained()
        self._num_parameters = sum(whole_shape(parameter).numel() for parameter in model.parameters())
        self._num_idle = model.num_parameters - model.num_active_parameters  # both 0 if the sharding took the weights
        adapter = self._adapter = Adapter.from_spec(model, settings.trainer, base=self._folder, device=self._device)
        self.published = published(model, adapter, sharding.values_at, held=sharding.written_span)
        self._check_dtypes()  # before DeepSpeed, whose own assertion has no message
        make_part = partial(policy_part, model, adapter, settings.optimizer)
        return scores_of(sharding.train(PolicyPass(model, settings), model, make_part).forward)

    def _make_critic(self) -> Callable[[MicroBatch], Tensor]:
        trunk = self._load_trained()
        critic = self._modules["critic"] = Critic(trunk, device=self._device)
        self._check_dtypes()
        make_part = partial(critic_part, critic, self._settings.algorithm)
        return self._sharding.train(CriticPass(critic, self._settings), trunk, make_part).forward

    def _make_reference(self, policy: ScoreTokens) -> ScoreTokens:
        adapter = self._adapter
        if adapter is None:
            model = self._modules["reference"] = self._sharding.load(self._folder)
            return self._make_frozen(model)

        def base_scores(batch: MicroBatch) -> TokenScores:
            with adapter.base_only():
                return policy(batch)

        return base_scores

    def _make_teacher(self, folder: Path) -> ScoreTokens:
        model = self._sharding.load(folder, is_teacher=True)
        if not self._sharding.keeps_stored_dtype:
            self._modules["teacher"] = model
        return self._make_frozen(model)

    def _make_frozen(self, model: TrainedModel) -> ScoreTokens:
        whole_pass = PolicyPass(model, self._settings).requires_grad_(False)
        return scores_of(self._sharding.freeze(whole_pass, model))

    def _load_trained(self) -> TrainedModel:
        model = self._sharding.load(self._folder)
        model.hold_activations(choose_activations(self._settings, model.config, self._device))
        return model

    def _make_step_factory(self, models: StepModels) -> StepFactory:
        config = self._model.config
        return StepFactory(
            self._settings,
            models=models,
            device=self._device,
            num_weights=self._num_parameters - self._num_idle,
            attention_width=config.attention_width,
            route_format=RouteFormat.of(config.mixture),
            rounding=Rounding.between(
                shape_of(config),
                published=config.dtype,
                products=dtype_of_products(self._settings.trainer.compute_dtype, self._device),
            ),
            ranks=self._sharding.ranks,
            share=self._sharding.share,
        )

    def _check_dtypes(self) -> None:
        check_dtypes(self._modules, torch.float32)

    @property
    def num_parameters(self) -> int:
        """The published model's."""
        return self._num_parameters

    def close(self) -> None:
        self._sharding.close()
        self._modules.clear()

    # One step ----------------------------------------------------------------------------------------------------

    def train_step(self, trajectories: Trajectories) -> StepResult:
        batch, config = TrainingBatch.of(trajectories), self._model.config
        check_batch(batch, vocab_size=config.vocab_size, max_positions=config.max_positions)
        for part in self._sharding.parts:
            part.drop_gradients()
        step = self._steps.begin(batch)
        metrics = step.train(backward=self._backward, update=self._update)
        return StepResult(metrics=metrics, advantages=step.advantages, begun_logprobs=step.begun_logprobs())

    def _backward(self, losses: MicroLoss) -> None:
        for part, loss in zip(self._sharding.parts, losses.of_parts, strict=True):
            part.backward(loss, is_last=losses.is_last)

    def _update(self, finite: bool) -> UpdateOutcome:
        rate_share = share_of_rate(self._settings, self._progress.num_updates)
        updated, norms = self._sharding.update(finite=finite, rate_share=rate_share)
        self._progress = self._progress.after(updated=updated)
        learning_rate = self._settings.optimizer.learning_rate * rate_share
        return UpdateOutcome(updated=updated, grad_norms=norms, learning_rate=learning_rate)

    # Weights and checkpoints -------------------------------------------------------------------------------------

    def snapshot(self, weights: WeightsId, *, allocate: Allocate | None = None) -> WeightVersion:
        """With several ranks: this rank's values, and zeros for the others'."""
        return self.published.pack(weights, allocate)

    def probe(self) -> Probe:
        """A probe of the current weights, for the version published from them. Every rank makes this call."""
        return self._steps.probe(self._model.config.vocab_size, self._model.config.max_positions)

    def get_ready_to_save(self) -> None:
        """Allocates the memory of the next copy in the background, if necessary."""
        self._saver.get_ready([part.written(is_filled=False) for part in self._sharding.parts])

    def prepare_save(self, folder: Path) -> Write:
        """Copies the state; the returned call writes this rank's part, together with the other ranks."""
        shares = [part.written() for part in self._sharding.parts]
        return self._saver.prepare(folder, shares, random_streams(self._device), self._progress)

    def load(self, folder: Path) -> None:
        world = self._sharding.world
        progress, files = read_progress(folder, self._model.config, current=self._progress, world=world)
        with StoredState(files) as stored:
            for part in self._sharding.parts:
                part.restore(stored, num_updates=progress.num_updates)
            restore_random_streams(stored.tensors("random/"), self._device, world.send)
        self._check_dtypes()
        self._progress = progress

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]:
        """The files that `load` reads on this rank, given each file's tensor names."""
        needed = {file for part in self._sharding.parts for file in part.files_needed(stored)}
        return [file for file in stored if file in needed]

    def _describe_published(self) -> PublishedModel:
        config, base = self._model.config, {} if self._adapter is None else self._adapter.base
        places = decoder_places(config, base or dict(self._model.named_parameters()))
        return PublishedModel(
            companions=companion_files(self._folder),
            dtype=config.dtype,
            places=places,
            adapter=self._adapter,
            base={name: self._written_share(places[name], each) for name, each in base.items()},
        )

    def _written_share(self, place: Place, parameter: nn.Parameter) -> Share:
        span = self._sharding.written_span(place)
        return Share(place, span, self._sharding.values_at(parameter, span))
