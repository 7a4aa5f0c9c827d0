"""One process, one device: AdamW on the losses of engine/training/step_loss.py.

Invariants:
- a step happens whole or not at all: when a loss or a gradient is not finite, all weights (the critic's too),
  moments and the learning rate stay as they were, and `train/skipped` is 1;
- weights are held in float32, whatever rollouts run in: at RL learning rates most updates are below bfloat16's
  resolution and would be lost;
- the reference is the model that the job began with, also after a resume;
- load continues what was prepared to be saved bit for bit, on the same device and library versions.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.models.decoder import Decoder
from engine.models.loading import (
    WEIGHTS_FILE,
    companion_files,
    load_decoder,
    load_weights,
    model_tensors,
    read_config,
)
from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
from engine.training.checkpoint import verify_checkpoint, write_checkpoint
from engine.training.exact_state import TrainedPart, read_exact_state, restore_exact_state
from engine.training.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter, adapter_tensors
from engine.training.micro_batch import MicroBatch, check_trajectories
from engine.training.port import Allocate, StepResult, TrainingTrajectory, Write
from engine.training.scoring import Critic, TokenScores, computing_in, score_tokens
from engine.training.step_loss import StepLoss, StepModels, is_finite, needs_critic, needs_reference
from engine.training.step_metrics import finite_only
from engine.training.trained_parts import critic_part, policy_part
from engine.weights.port import WeightVersion
from engine.weights.snapshot import pack_weights

OPTIMIZER_FILE: Final = "optimizer.safetensors"
TRAINER_FILE: Final = "trainer.json"
ADAPTER_FOLDER: Final = "adapter"  # apart: beside the merged weights, transformers would apply it to them again


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerProgress:
    """`trainer.json`."""

    num_updates: int
    """Steps that changed the weights; the learning rate follows it."""
    num_skipped: int
    has_critic: bool
    lora_rank: int
    lora_alpha: float


class TorchTrainer:
    def __init__(
        self,
        model_folder: Path,
        *,
        optimizer: OptimizerSpec,
        algorithm: AlgorithmSpec,
        trainer: TrainerSpec,
        temperature: float,
        max_new_tokens: int,
        seed: int,
        device: str,
    ) -> None:
        """`temperature`: the one that responses were sampled with; their log-probs belong to it."""
        torch.manual_seed(seed)
        self._optimizer_spec = optimizer
        self._train_entropy = algorithm.entropy_coefficient > 0.0
        self._temperature = temperature
        self._trainer_spec = trainer
        self._device = torch.device(device)
        self._companions = companion_files(model_folder)
        self._model = load_decoder(model_folder, device=device, dtype=torch.float32)
        self._num_parameters = self._model.num_parameters
        self._adapter = _adapter(self._model, trainer, base_name=model_folder.name)
        self._reference = self._load_reference(model_folder) if needs_reference(algorithm) else None
        self._critic = (
            Critic(load_decoder(model_folder, device=device, dtype=torch.float32)) if needs_critic(algorithm) else None
        )
        self._parts = [policy_part(self._model, self._adapter, optimizer)]
        if self._critic is not None:
            self._parts.append(critic_part(self._critic, optimizer, learning_rate=algorithm.critic.learning_rate))
        self._progress = TrainerProgress(
            num_updates=0,
            num_skipped=0,
            has_critic=self._critic is not None,
            lora_rank=trainer.lora_rank,
            lora_alpha=trainer.lora_alpha if trainer.lora_rank else 0.0,
        )
        self._step_loss = StepLoss(
            algorithm,
            models=StepModels(
                policy=self._score_policy,
                reference=self._score_reference if needs_reference(algorithm) else None,
                critic=self._values if self._critic else None,
            ),
            micro_batch_tokens=trainer.micro_batch_tokens,
            max_new_tokens=max_new_tokens,
            device=device,
        )

    @property
    def num_parameters(self) -> int:
        """Of the published model."""
        return self._num_parameters

    # One step ----------------------------------------------------------------------------------------------------

    def train_step(self, trajectories: Sequence[TrainingTrajectory]) -> StepResult:
        config = self._model.config
        check_trajectories(trajectories, vocab_size=config.vocab_size, max_positions=config.max_positions)
        for part in self._parts:
            part.optimizer.zero_grad()
        step = self._step_loss.begin(trajectories)
        for losses in step.losses():
            losses.policy.backward()  # type: ignore[no-untyped-call]
            if losses.value is not None:
                losses.value.backward()  # type: ignore[no-untyped-call]
        norms = [self._clip(part) for part in self._parts]
        metrics = step.metrics()
        warmth = self._warmth()
        updated = is_finite(metrics) and all(math.isfinite(norm) for norm in norms)
        if updated:
            self._update(warmth)
        else:
            self._progress = replace(self._progress, num_skipped=self._progress.num_skipped + 1)
        metrics |= {f"train/{part.prefix}grad_norm": norm for part, norm in zip(self._parts, norms, strict=True)}
        metrics["train/learning_rate"] = self._optimizer_spec.learning_rate * warmth
        metrics["train/skipped"] = float(not updated)
        return StepResult(metrics=finite_only(metrics), advantages=step.advantages)

    def _score_policy(self, batch: MicroBatch) -> TokenScores:
        return self._score(self._model, batch)

    def _score_reference(self, batch: MicroBatch) -> TokenScores:
        with nullcontext() if self._adapter is None else self._adapter.base_only():
            return self._score(self._reference or self._model, batch)

    def _score(self, model: Decoder, batch: MicroBatch) -> TokenScores:
        return score_tokens(model, batch, temperature=self._temperature, compute_dtype=self._trainer_spec.compute_dtype)

    def _values(self, batch: MicroBatch) -> Tensor:
        assert self._critic is not None
        with computing_in(self._trainer_spec.compute_dtype, self._device):
            values_N: Tensor = self._critic(batch)
        return values_N

    def _clip(self, part: TrainedPart) -> float:
        return nn.utils.clip_grad_norm_(part.parameters.values(), self._optimizer_spec.max_grad_norm).item()

    def _warmth(self) -> float:
        """The share of the learning rate: rises over the warm-up, then 1; the first update already has its part."""
        return min((self._progress.num_updates + 1) / max(self._optimizer_spec.warmup_steps, 1), 1.0)

    def _update(self, warmth: float) -> None:
        for part in self._parts:
            for group in part.optimizer.groups:
                group.lr = group.full_lr * warmth
            part.optimizer.step()
        self._progress = replace(self._progress, num_updates=self._progress.num_updates + 1)

    # Weights and checkpoints -------------------------------------------------------------------------------------

    def snapshot(self, version: int, *, epoch: int = 0, allocate: Allocate | None = None) -> WeightVersion:
        return pack_weights(self._published_tensors(), version=version, epoch=epoch, allocate=allocate)

    def prepare_save(self, folder: Path) -> Write:
        """Everything is copied here: what is written later is not what training has made of it since."""
        files: dict[str, Callable[[Path], None]] = {
            **{name: _bytes_writer(content) for name, content in self._companions.items()},
            WEIGHTS_FILE: _tensors_writer(self._published_tensors()),
            OPTIMIZER_FILE: _tensors_writer(read_exact_state(self._parts, self._device)),
            TRAINER_FILE: _bytes_writer(json.dumps(asdict(self._progress), indent=2).encode()),
        }
        if self._adapter is not None:
            files[f"{ADAPTER_FOLDER}/{ADAPTER_CONFIG}"] = _bytes_writer(self._adapter.config)
            files[f"{ADAPTER_FOLDER}/{ADAPTER_WEIGHTS}"] = _tensors_writer(adapter_tensors(self._adapter.parameters))
        return partial(_write, folder, files)

    def load(self, folder: Path) -> None:
        verify_checkpoint(folder)
        if read_config(folder) != self._model.config:
            raise ValueError(f"{folder}: the checkpoint is of another model than this trainer's")
        progress = TrainerProgress(**json.loads((folder / TRAINER_FILE).read_text()))
        if replace(progress, num_updates=0, num_skipped=0) != replace(self._progress, num_updates=0, num_skipped=0):
            raise ValueError(f"{folder}: the checkpoint was trained with another critic or adapter than this trainer's")
        if self._adapter is None:
            load_weights(self._model, folder)
        restore_exact_state(
            self._parts,
            self._device,
            load_file(folder / OPTIMIZER_FILE, device=str(self._device)),
            num_updates=progress.num_updates,
        )
        self._progress = progress

    def _published_tensors(self) -> dict[str, Tensor]:
        """In the dtype that rollouts run in; an adapter is merged."""
        tensors = model_tensors(self._model) if self._adapter is None else self._adapter.merged()
        return {name: tensor.to(self._model.config.dtype) for name, tensor in tensors.items()}

    def _load_reference(self, model_folder: Path) -> Decoder | None:
        """None: it is this very model without its adapter."""
        if self._adapter is not None:
            return None
        return load_decoder(model_folder, device=str(self._device), dtype=torch.float32).requires_grad_(False)


def _adapter(model: Decoder, spec: TrainerSpec, *, base_name: str) -> Adapter | None:
    if not spec.lora_rank:
        return None
    return Adapter(model, rank=spec.lora_rank, alpha=spec.lora_alpha, base_name=base_name)


def _write(folder: Path, files: Mapping[str, Callable[[Path], None]]) -> None:
    write_checkpoint(folder, files)


def _bytes_writer(content: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_bytes(content)

    return write


def _tensors_writer(tensors: Mapping[str, Tensor]) -> Callable[[Path], None]:
    """Copies now, each for itself: row slices of one matrix share memory."""
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}

    def write(file: Path) -> None:
        save_file(copies, file, {"format": "pt"})

    return write
