"""One process, one device: AdamW on a clipped policy loss.

    N response tokens of a micro-batch

Invariants:
- a step happens whole or not at all: when loss or gradient is not finite, weights, optimizer and learning rate stay
  as they were, and `train/skipped` is 1;
- weights are held in float32, whatever rollouts run in: at RL learning rates most updates are below bfloat16's
  resolution and would be lost;
- save then load continues bit for bit, on the same device and library versions.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.algorithms.advantages import group_advantages
from engine.algorithms.loss import LossParams, policy_loss
from engine.models.decoder import PackedAttention, token_logprobs
from engine.models.loading import (
    WEIGHTS_FILE,
    companion_files,
    load_decoder,
    load_weights,
    model_tensors,
    read_config,
    save_weights,
)
from engine.spec.job import AlgorithmSpec, OptimizerSpec
from engine.training.checkpoint import verify_checkpoint, write_checkpoint
from engine.training.exact_state import read_exact_state, restore_exact_state
from engine.training.micro_batch import MicroBatch, check_trajectories, micro_batches
from engine.training.port import StepResult, TrainingTrajectory
from engine.weights.port import WeightVersion
from engine.weights.snapshot import pack_weights

OPTIMIZER_FILE: Final = "optimizer.safetensors"
TRAINER_FILE: Final = "trainer.json"
BETAS: Final = (0.9, 0.999)
EPS: Final = 1e-8

# Bounds the memory of one backward: about 16 kB a token and layer at width 1,024. Splitting changes no result beyond
# rounding, since the loss is normalised over the whole step.
MICRO_BATCH_TOKENS: Final = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerProgress:
    """`trainer.json`."""

    num_updates: int
    """Steps that changed the weights; the learning rate follows it."""
    num_skipped: int


class TorchTrainer:
    def __init__(
        self,
        model_folder: Path,
        *,
        optimizer: OptimizerSpec,
        algorithm: AlgorithmSpec,
        temperature: float,
        seed: int,
        device: str,
    ) -> None:
        """`temperature`: the one that responses were sampled with; their log-probs belong to it."""
        torch.manual_seed(seed)
        self._spec = optimizer
        self._loss_params = LossParams(clip_low=algorithm.clip_low, clip_high=algorithm.clip_high)
        self._temperature = temperature
        self._device = device
        self._model = load_decoder(model_folder, device=device, dtype=torch.float32)
        self._companions = companion_files(model_folder)
        self._progress = TrainerProgress(num_updates=0, num_skipped=0)
        self._optimizer = torch.optim.AdamW(
            _decay_groups(self._model, optimizer.weight_decay), lr=0.0, betas=BETAS, eps=EPS, fused=True
        )

    @property
    def num_parameters(self) -> int:
        return self._model.num_parameters

    # One step ----------------------------------------------------------------------------------------------------

    def train_step(self, trajectories: Sequence[TrainingTrajectory]) -> StepResult:
        config = self._model.config
        check_trajectories(trajectories, vocab_size=config.vocab_size, max_positions=config.max_positions)
        rewards_N = torch.tensor([each.reward for each in trajectories], dtype=torch.float64)
        groups_N = torch.tensor([each.group for each in trajectories])
        advantages = tuple(group_advantages(rewards_N, groups_N).tolist())
        self._optimizer.zero_grad()
        means = self._accumulate_gradients(trajectories, advantages)
        learning_rate = self._learning_rate()
        grad_norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._spec.max_grad_norm).item()
        updated = math.isfinite(grad_norm) and math.isfinite(means["train/loss"])
        if updated:
            self._update(learning_rate)
        else:
            self._progress = replace(self._progress, num_skipped=self._progress.num_skipped + 1)
        metrics = means | {
            "train/grad_norm": grad_norm,
            "train/learning_rate": learning_rate,
            "train/skipped": float(not updated),
            "train/tokens": float(sum(len(each.prompt_ids) + len(each.response_ids) for each in trajectories)),
            "reward/mean": rewards_N.mean().item(),
            "reward/std": rewards_N.std(correction=0).item(),
            **_length_metrics(trajectories),
        }
        # A metric that is not finite is no number that anyone could plot or store; `train/skipped` tells of it.
        return StepResult(metrics={k: v for k, v in metrics.items() if math.isfinite(v)}, advantages=advantages)

    def _accumulate_gradients(
        self, trajectories: Sequence[TrainingTrajectory], advantages: Sequence[float]
    ) -> dict[str, float]:
        """Means over the step's response tokens."""
        num_tokens = sum(len(each.response_ids) for each in trajectories)
        sums: dict[str, Tensor] = {}
        for batch in micro_batches(trajectories, advantages, max_tokens=MICRO_BATCH_TOKENS, device=self._device):
            for name, value in self._backward(batch, num_tokens).items():
                sums[name] = sums[name] + value if name in sums else value
        means = torch.stack(list(sums.values())).tolist()
        return {f"train/{name}": value for name, value in zip(sums, means, strict=True)}

    def _backward(self, batch: MicroBatch, num_tokens: int) -> dict[str, Tensor]:
        tokens = batch.tokens
        hidden_TD = self._model(tokens.ids_T, tokens.positions_T, PackedAttention(tokens.rectangles))
        logits_NV = self._model.logits(hidden_TD[batch.predicting_N])
        logprobs_N, entropy_N = token_logprobs(logits_NV, batch.targets_N, self._temperature)
        outcome = policy_loss(
            logprobs_N,
            batch.behaviour_logprobs_N,
            batch.advantages_N,
            params=self._loss_params,
            num_tokens=num_tokens,
        )
        outcome.loss.backward()  # type: ignore[no-untyped-call]
        return {"loss": outcome.loss.detach(), "entropy": entropy_N.sum() / num_tokens, **outcome.metrics}

    def _learning_rate(self) -> float:
        """Rises linearly over the warm-up, then stays; the first update already has its share."""
        warm = (self._progress.num_updates + 1) / max(self._spec.warmup_steps, 1)
        return self._spec.learning_rate * min(warm, 1.0)

    def _update(self, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._progress = replace(self._progress, num_updates=self._progress.num_updates + 1)

    # Weights and checkpoints -------------------------------------------------------------------------------------

    def snapshot(self, version: int) -> WeightVersion:
        return pack_weights(self._published_tensors(), version=version)

    def save(self, folder: Path) -> None:
        progress = json.dumps(asdict(self._progress), indent=2).encode()
        write_checkpoint(
            folder,
            {
                **{name: _bytes_writer(content) for name, content in self._companions.items()},
                WEIGHTS_FILE: partial(save_weights, self._published_tensors()),
                OPTIMIZER_FILE: partial(save_weights, read_exact_state(self._model, self._optimizer)),
                TRAINER_FILE: _bytes_writer(progress),
            },
        )

    def load(self, folder: Path) -> None:
        verify_checkpoint(folder)
        if read_config(folder) != self._model.config:
            raise ValueError(f"{folder}: the checkpoint is of another model than this trainer's")
        load_weights(self._model, folder)
        self._progress = TrainerProgress(**json.loads((folder / TRAINER_FILE).read_text()))
        restore_exact_state(
            self._model,
            self._optimizer,
            load_file(folder / OPTIMIZER_FILE, device=self._device),
            num_updates=self._progress.num_updates,
        )

    def _published_tensors(self) -> dict[str, Tensor]:
        """In the dtype that rollouts run in."""
        return {name: tensor.to(self._model.config.dtype) for name, tensor in model_tensors(self._model).items()}


def _decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay, norms do not: pulling a scale towards zero only shrinks the layer's signal."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    norms = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]


def _length_metrics(trajectories: Sequence[TrainingTrajectory]) -> dict[str, float]:
    lengths_N = torch.tensor([float(len(each.response_ids)) for each in trajectories])
    return {"length/mean": lengths_N.mean().item(), "length/p99": lengths_N.quantile(0.99).item()}


def _bytes_writer(content: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_bytes(content)

    return write
