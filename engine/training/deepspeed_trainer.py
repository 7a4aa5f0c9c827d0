"""One step by several processes with a device each: the losses of engine/training/step_loss.py, DeepSpeed's ZeRO.

Invariants:
- every rank runs the same calls with the same batch; what a caller may use is returned by rank 0, the others return
  something empty;
- a step happens whole on all ranks or on none: they agree on losses and on the norm of the gradients before it;
- a checkpoint is that of engine/training/torch_trainer.py: any number of ranks, stage or backend goes on from it. With
  the same ones it goes on bit for bit;
- rank 0 alone reads checkpoints and weights and writes them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.models.decoder import Decoder
from engine.models.loading import (
    WEIGHTS_FILE,
    companion_files,
    load_decoder,
    model_tensors,
    read_config,
)
from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
from engine.training.checkpoint import verify_checkpoint, write_checkpoint
from engine.training.deepspeed_sharding import MOMENTS, ShardedDecoder, empty_decoder, frozen, send_weights
from engine.training.deepspeed_world import ALONE, World
from engine.training.micro_batch import MicroBatch, check_trajectories
from engine.training.port import Allocate, StepResult, TrainingTrajectory, Write
from engine.training.scoring import ComputeDtype, TokenScores, score_tokens
from engine.training.step_loss import StepLoss, StepModels, is_finite, needs_critic, needs_reference
from engine.training.step_metrics import finite_only
from engine.training.torch_trainer import OPTIMIZER_FILE, TRAINER_FILE, TrainerProgress
from engine.weights.port import WeightVersion
from engine.weights.snapshot import pack_weights


class DeepSpeedTrainer:
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
        world: World = ALONE,
    ) -> None:
        """`temperature`: the one that responses were sampled with; their log-probs belong to it."""
        _refuse_what_only_torch_has(algorithm, trainer)
        torch.manual_seed(seed)
        self._optimizer_spec, self._device, self._world = optimizer, torch.device(device), world
        self._config = read_config(model_folder)
        self._companions = companion_files(model_folder)
        self._progress = TrainerProgress(num_updates=0, num_skipped=0, has_critic=False, lora_rank=0, lora_alpha=0.0)
        world.enter(device)
        try:
            self._sharded, reference = self._divide(model_folder, trainer, temperature, needs_reference(algorithm))
        except BaseException:
            world.leave()
            raise
        self._step_loss = StepLoss(
            algorithm,
            models=StepModels(policy=_scores_of(self._sharded.forward), reference=reference),
            micro_batch_tokens=trainer.micro_batch_tokens,
            max_new_tokens=max_new_tokens,
            device=device,
            ranks=world,
        )

    def _divide(
        self, model_folder: Path, trainer: TrainerSpec, temperature: float, with_reference: bool
    ) -> tuple[ShardedDecoder, Callable[[MicroBatch], TokenScores] | None]:
        """(what is trained, the reference). The model folder is read by rank 0, once for each."""
        stage, device = trainer.zero_stage, str(self._device)
        scoring = partial(_Scoring, temperature=temperature, compute_dtype=trainer.compute_dtype)
        model = self._loaded(model_folder, stage=stage)
        sharded = ShardedDecoder(
            model,
            scoring(model),
            stage=stage,
            weight_decay=self._optimizer_spec.weight_decay,
            max_grad_norm=self._optimizer_spec.max_grad_norm,
            world=self._world,
            device=device,
        )
        if not with_reference:
            return sharded, None
        first = scoring(self._loaded(model_folder, stage=stage))
        return sharded, _scores_of(frozen(first, stage=stage, device=device))

    def close(self) -> None:
        self._sharded.close()
        self._world.leave()

    @property
    def num_parameters(self) -> int:
        return self._sharded.num_parameters

    # One step ----------------------------------------------------------------------------------------------------

    def train_step(self, trajectories: Sequence[TrainingTrajectory]) -> StepResult:
        check_trajectories(trajectories, vocab_size=self._config.vocab_size, max_positions=self._config.max_positions)
        step = self._step_loss.begin(trajectories)
        for number, losses in enumerate(step.losses(), start=1):
            self._sharded.backward(losses.policy, is_last=number == step.num_micro_batches)
        metrics = step.metrics()
        if not is_finite(metrics):
            self._sharded.spoil_gradients()
        learning_rate = self._learning_rate()
        outcome = self._sharded.step(learning_rate)
        self._progress = replace(
            self._progress,
            num_updates=self._progress.num_updates + outcome.updated,
            num_skipped=self._progress.num_skipped + (not outcome.updated),
        )
        metrics["train/grad_norm"] = outcome.grad_norm
        metrics["train/learning_rate"] = learning_rate
        metrics["train/skipped"] = float(not outcome.updated)
        return StepResult(metrics=finite_only(metrics), advantages=step.advantages)

    def _learning_rate(self) -> float:
        """Rises over the warm-up, then stays; the first update already has its share."""
        warm = (self._progress.num_updates + 1) / max(self._optimizer_spec.warmup_steps, 1)
        return self._optimizer_spec.learning_rate * min(warm, 1.0)

    # Weights and checkpoints -------------------------------------------------------------------------------------

    def snapshot(self, version: int, *, epoch: int = 0, allocate: Allocate | None = None) -> WeightVersion:
        """On other ranks than the first: of nothing."""
        return pack_weights(self._published(), version=version, epoch=epoch, allocate=allocate)

    def prepare_save(self, folder: Path) -> Write:
        """Gathered and copied here; rank 0's call writes, the others' do nothing."""
        published = self._published()
        state = self._exact_state()
        if self._world.index:
            return _write_nothing
        progress = json.dumps(asdict(self._progress), indent=2).encode()
        return partial(
            _write_files,
            folder,
            {
                **{name: partial(_write_bytes, content) for name, content in self._companions.items()},
                WEIGHTS_FILE: partial(_write_tensors, published),
                OPTIMIZER_FILE: partial(_write_tensors, state),
                TRAINER_FILE: partial(_write_bytes, progress),
            },
        )

    def load(self, folder: Path) -> None:
        weights: Mapping[str, Tensor] = {}
        state: Mapping[str, Tensor] = {}
        counts = torch.zeros(2, dtype=torch.int64)
        if self._world.index == 0:
            verify_checkpoint(folder)
            weights, state = self._read(folder)
            progress = json.loads((folder / TRAINER_FILE).read_text())
            counts = torch.tensor([progress["num_updates"], progress["num_skipped"]])
        num_updates, num_skipped = self._world.send(counts.to(self._device)).tolist()
        self._sharded.send_weights(weights)
        self._sharded.reset_moments(num_updates=num_updates)
        for moment in MOMENTS:
            self._sharded.send_moment(moment, _under(f"{moment}/", state))
        self._send_random_streams(state)
        self._progress = replace(self._progress, num_updates=num_updates, num_skipped=num_skipped)

    def _loaded(self, model_folder: Path, *, stage: int) -> Decoder:
        model = empty_decoder(self._config, stage=stage, device=str(self._device))
        # Not straight onto the device: in stage 3 the whole model need not fit on one.
        source = None if self._world.index else load_decoder(model_folder, device="cpu", dtype=torch.float32)
        send_weights(model, model_tensors(source) if source else {}, world=self._world)
        return model

    def _published(self) -> dict[str, Tensor]:
        """Copies on rank 0's host, in the dtype that rollouts run in."""
        return self._copied(self._sharded.weights(), self._config.dtype)

    def _exact_state(self) -> dict[str, Tensor]:
        state = {"random/cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            state["random/cuda"] = torch.cuda.get_rng_state(self._device)
        if self._config.dtype != torch.float32:
            copies = self._copied(self._sharded.weights(), torch.float32)
            state |= {f"master/{name}": tensor for name, tensor in copies.items()}
        for moment in MOMENTS:
            copies = self._copied(self._sharded.moments(moment), torch.float32)
            state |= {f"{moment}/{name}": tensor for name, tensor in copies.items()}
        return state

    def _copied(self, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> dict[str, Tensor]:
        """Every rank goes through all of them, since each is gathered from every rank."""
        is_first = self._world.index == 0
        return {name: tensor.to("cpu", dtype, copy=True) for name, tensor in tensors if is_first}

    def _read(self, folder: Path) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """(weights as exact as they were stored, the rest)."""
        if read_config(folder) != self._config:
            raise ValueError(f"{folder}: the checkpoint is of another model than this trainer's")
        progress = json.loads((folder / TRAINER_FILE).read_text())
        if progress["has_critic"] or progress["lora_rank"]:
            raise ValueError(
                f"{folder}: the checkpoint was trained with a critic or an adapter; backend torch has these"
            )
        stored = model_tensors(load_decoder(folder, device="cpu", dtype=torch.float32))
        state = load_file(folder / OPTIMIZER_FILE)
        return stored | _under("master/", state), state

    def _send_random_streams(self, state: Mapping[str, Tensor]) -> None:
        own = {"random/cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            own["random/cuda"] = torch.cuda.get_rng_state(self._device)
        for name, stream in own.items():
            sent = self._world.send(state.get(name, stream).to(self._device)).cpu()
            if name == "random/cpu":
                torch.set_rng_state(sent)
            else:
                torch.cuda.set_rng_state(sent, self._device)


class _Scoring(nn.Module):
    """All that touches the decoder's weights is inside of one forward: of ZeRO 3 they are there only during it."""

    def __init__(self, model: Decoder, *, temperature: float, compute_dtype: ComputeDtype) -> None:
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._compute_dtype: ComputeDtype = compute_dtype

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        scores = score_tokens(self.model, batch, temperature=self._temperature, compute_dtype=self._compute_dtype)
        return scores.logprobs_N, scores.entropy_N


def _scores_of(forward: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[MicroBatch], TokenScores]:
    def scores(batch: MicroBatch) -> TokenScores:
        logprobs_N, entropy_N = forward(batch)
        return TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N)

    return scores


def _refuse_what_only_torch_has(algorithm: AlgorithmSpec, trainer: TrainerSpec) -> None:
    if needs_critic(algorithm):
        raise ValueError("trainer.backend: 'torch' for algorithms with a critic (ppo), got 'deepspeed'")
    if trainer.lora_rank:
        raise ValueError("trainer.lora_rank: only with trainer.backend 'torch', got 'deepspeed'")


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _write_nothing() -> None:
    """What a rank does that has nothing to write."""


def _write_files(folder: Path, files: Mapping[str, Callable[[Path], None]]) -> None:
    write_checkpoint(folder, files)


def _write_bytes(content: bytes, file: Path) -> None:
    file.write_bytes(content)


def _write_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    save_file(tensors, file, {"format": "pt"})
