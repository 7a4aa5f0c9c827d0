"""The content of a checkpoint, the same for every trainer, so that each can resume from another's.

model.safetensors   config.json …       a Hugging Face folder: the published weights, with the adapter merged
optimizer.safetensors   trainer.json    moments, exact weights and random streams; the progress
adapter/                                peft's own folder, if the job trains an adapter

With several ranks: `model-…` with a Hugging Face index, and `state-…` with each rank's values.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final, Self

from engine.models.families.trained_model import ModelConfig, read_model_config
from engine.models.loading import WEIGHTS_FILE
from engine.spec.checkpoint_manifest import CheckpointPart
from engine.spec.job import AlgorithmSpec, TrainerSpec
from engine.training.checkpoint.folder import (
    ELSEWHERE_FILE,
    CheckpointUnverified,
    local_parts,
    read_manifest,
    verify_parts,
)
from engine.training.ranks.world import World
from engine.training.step.models import needs_critic

OPTIMIZER_FILE: Final = "optimizer.safetensors"
TRAINER_FILE: Final = "trainer.json"
ADAPTER_FOLDER: Final = "adapter"  # a subfolder: next to the merged weights, transformers would apply it to them


class SavingFailed(Exception):
    """A rank could not write its part of a checkpoint; the previous checkpoint is unchanged."""

    retryable = True  # on a disk with room


def model_file(rank: int, num_ranks: int) -> str:
    return WEIGHTS_FILE if num_ranks == 1 else f"model-{rank + 1:05d}-of-{num_ranks:05d}.safetensors"


def state_file(rank: int, num_ranks: int) -> str:
    return OPTIMIZER_FILE if num_ranks == 1 else f"state-{rank + 1:05d}-of-{num_ranks:05d}.safetensors"


def holds_state(name: str) -> bool:
    """Whether a checkpoint's part is state for a resuming trainer, and not part of the model."""
    return name in (OPTIMIZER_FILE, TRAINER_FILE) or name.startswith(("state-", f"{ADAPTER_FOLDER}/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerProgress:
    """The content of `trainer.json`."""

    num_updates: int
    """Updates that changed the weights, of which a step may make several; determines the learning rate."""
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


def read_progress(
    folder: Path, config: ModelConfig, *, current: TrainerProgress, world: World
) -> tuple[TrainerProgress, list[Path]]:
    """The progress and state files of a verified checkpoint, if a trainer of this model, with the critic and adapter of
    `current`, can resume from it. Raises otherwise. Collective."""
    parts = _verify_in_turns(folder, world)
    if read_model_config(folder) != config:
        raise ValueError(
            f"{folder}: the checkpoint is of another model than this trainer's: {_list_differences(folder, config)}"
        )
    progress = TrainerProgress(**json.loads((folder / TRAINER_FILE).read_text()))
    if replace(progress, num_updates=0, num_skipped=0) != replace(current, num_updates=0, num_skipped=0):
        raise ValueError(
            f"{folder}: the checkpoint was trained with another critic or adapter than this trainer's: "
            f"{_describe(progress)}, not {_describe(current)}; continue it with those, or use it as model.source"
        )
    return progress, [folder / name for name in parts if name.endswith(".safetensors") and "/" not in name]


def _list_differences(folder: Path, config: ModelConfig) -> str:
    stored, own = (
        {field.name: getattr(each, field.name) for field in fields(each)}
        for each in (read_model_config(folder), config)
    )
    names = [name for name in {**own, **stored} if stored.get(name) != own.get(name)]
    return ", ".join(f"{name} {str(stored.get(name))[:80]}, not {str(own.get(name))[:80]}" for name in names)


def _describe(progress: TrainerProgress) -> str:
    values = asdict(progress)
    return ", ".join(f"{name} {values[name]}" for name in ("has_critic", "lora_rank", "lora_alpha"))


def _verify_in_turns(folder: Path, world: World) -> Mapping[str, CheckpointPart]:
    """The parts in this folder. Ranks that see the same folder divide its files; a failure on one fails all."""
    digest, failure, folder_id = "", "", f"rank {world.index}'s"
    parts: dict[str, CheckpointPart] = {}
    try:
        digest, parts = read_manifest(folder)
        elsewhere = folder / ELSEWHERE_FILE
        folder_id = (elsewhere.read_text() or folder_id) if elsewhere.exists() else "everybody's"
    except CheckpointUnverified as error:
        failure = str(error)
    every = _exchange(failure, [digest, folder_id], world)
    if len({digest for digest, _ in every}) > 1:
        raise CheckpointUnverified(f"{folder}: ranks read manifests of different checkpoints")
    sharing = [rank for rank, (_, each) in enumerate(every) if each == folder_id]
    here = sorted(local_parts(folder, parts), key=lambda name: parts[name].num_bytes)
    own = here[sharing.index(world.index) :: len(sharing)]
    try:
        verify_parts(folder, {name: parts[name] for name in own})
    except CheckpointUnverified as error:
        failure = str(error)
    _exchange(failure, [], world)
    return {name: parts[name] for name in here}


def _exchange(failure: str, values: Sequence[str], world: World) -> list[list[str]]:
    """All ranks' values. Raises if one has failed."""
    every: list[list[str]] = [json.loads(each) for each in world.exchange(json.dumps([failure, *values]).encode())]
    if failures := [f"rank {rank}: {each}" for rank, (each, *_) in enumerate(every) if each]:
        raise CheckpointUnverified("; ".join(failures))
    return [rest for _, *rest in every]
