"""The content of every trainer's checkpoint, so that one trainer goes on from another's.

model.safetensors   config.json …       a Hugging Face folder: what is published, an adapter merged
optimizer.safetensors   trainer.json    engine/training/checkpoint/exact_state.py; how far it is
adapter/                                peft's own folder, of a job that trains an adapter
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from safetensors.torch import save_file
from torch import Tensor

from engine.models.families.trained_model import ModelConfig, read_model_config
from engine.models.loading import WEIGHTS_FILE
from engine.signs import at_work
from engine.spec.job import AlgorithmSpec, TrainerSpec
from engine.training.checkpoint.folder import verify_checkpoint, write_checkpoint
from engine.training.step.loss import needs_critic

OPTIMIZER_FILE: Final = "optimizer.safetensors"
TRAINER_FILE: Final = "trainer.json"
ADAPTER_FOLDER: Final = "adapter"  # apart: beside the merged weights, transformers would apply it to them again


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerProgress:
    """The content of `trainer.json`."""

    num_updates: int
    """Updates that changed the weights, of which a step may make several; the learning rate follows it."""
    num_skipped: int
    has_critic: bool
    lora_rank: int
    lora_alpha: float

    @classmethod
    def begin(cls, algorithm: AlgorithmSpec, trainer: TrainerSpec) -> Self:
        return cls(
            num_updates=0,
            num_skipped=0,
            has_critic=needs_critic(algorithm),
            lora_rank=trainer.lora_rank,
            lora_alpha=trainer.lora_alpha if trainer.lora_rank else 0.0,
        )

    def after(self, *, updated: bool) -> Self:
        return replace(self, num_updates=self.num_updates + updated, num_skipped=self.num_skipped + (not updated))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCheckpoint:
    """Copies in host memory, which training on does not change."""

    companions: Mapping[str, bytes]
    weights: dict[str, Tensor]
    state: dict[str, Tensor]
    progress: TrainerProgress
    adapter_config: bytes | None

    def write(self, folder: Path) -> None:
        files = {
            **{name: partial(_write_bytes, content) for name, content in self.companions.items()},
            WEIGHTS_FILE: partial(_write_tensors, self.weights),
            OPTIMIZER_FILE: partial(_write_tensors, self.state),
            TRAINER_FILE: partial(_write_bytes, json.dumps(asdict(self.progress), indent=2).encode()),
        }
        if self.adapter_config is not None:
            files[f"{ADAPTER_FOLDER}/adapter_config.json"] = partial(_write_bytes, self.adapter_config)
            files[f"{ADAPTER_FOLDER}/adapter_model.safetensors"] = partial(_write_tensors, under("master/", self.state))
        write_checkpoint(folder, files)


def read_progress(folder: Path, config: ModelConfig, *, current: TrainerProgress) -> TrainerProgress:
    """Of a whole checkpoint that a trainer of this model, with the critic and adapter of `current`, can go on from."""
    verify_checkpoint(folder)
    if read_model_config(folder) != config:
        raise ValueError(f"{folder}: the checkpoint is of another model than this trainer's")
    progress = TrainerProgress(**json.loads((folder / TRAINER_FILE).read_text()))
    if replace(progress, num_updates=0, num_skipped=0) != replace(current, num_updates=0, num_skipped=0):
        raise ValueError(f"{folder}: the checkpoint was trained with another critic or adapter than this trainer's")
    return progress


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _write_bytes(content: bytes, file: Path) -> None:
    file.write_bytes(content)


def _write_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    with at_work("write", num_bytes=sum(tensor.nbytes for tensor in tensors.values())):
        save_file(tensors, file, {"format": "pt"})
