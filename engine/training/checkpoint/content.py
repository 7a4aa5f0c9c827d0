"""The content of every trainer's checkpoint, so that one trainer goes on from another's.

model.safetensors   config.json …       a Hugging Face folder: what is published, an adapter merged
optimizer.safetensors   trainer.json    moments, exact weights and random streams; how far it is
adapter/                                peft's own folder, of a job that trains an adapter

Of several ranks: `model-…` by an index of Hugging Face's, `state-…` with the values that each rank had.
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
    parts_here,
    read_manifest,
    verify_parts,
)
from engine.training.ranks.world import World
from engine.training.step.models import needs_critic

OPTIMIZER_FILE: Final = "optimizer.safetensors"
TRAINER_FILE: Final = "trainer.json"
ADAPTER_FOLDER: Final = "adapter"  # apart: beside the merged weights, transformers would apply it to them again


class SavingFailed(Exception):
    """A rank could not write its part of a checkpoint; the one before it is as it was."""

    retryable = True  # on a disk with room


def model_file(rank: int, num_ranks: int) -> str:
    return WEIGHTS_FILE if num_ranks == 1 else f"model-{rank + 1:05d}-of-{num_ranks:05d}.safetensors"


def state_file(rank: int, num_ranks: int) -> str:
    return OPTIMIZER_FILE if num_ranks == 1 else f"state-{rank + 1:05d}-of-{num_ranks:05d}.safetensors"


def holds_state(name: str) -> bool:
    """Of a checkpoint's part: it is for a trainer that goes on, and nothing of the model."""
    return name in (OPTIMIZER_FILE, TRAINER_FILE) or name.startswith(("state-", f"{ADAPTER_FOLDER}/"))


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


def read_progress(
    folder: Path, config: ModelConfig, *, current: TrainerProgress, world: World
) -> tuple[TrainerProgress, list[Path]]:
    """Of a whole checkpoint that a trainer of this model, with the critic and adapter of `current`, can go on from; and
    the files that its state is in. Collective."""
    parts = _verified_in_turns(folder, world)
    if read_model_config(folder) != config:
        raise ValueError(
            f"{folder}: the checkpoint is of another model than this trainer's: {_differences(folder, config)}"
        )
    progress = TrainerProgress(**json.loads((folder / TRAINER_FILE).read_text()))
    if replace(progress, num_updates=0, num_skipped=0) != replace(current, num_updates=0, num_skipped=0):
        raise ValueError(
            f"{folder}: the checkpoint was trained with another critic or adapter than this trainer's: "
            f"{_told(progress)}, not {_told(current)}; go on from it with those, or begin from the folder as a model"
        )
    return progress, [folder / name for name in parts if name.endswith(".safetensors") and "/" not in name]


def _differences(folder: Path, config: ModelConfig) -> str:
    found, asked = (
        {field.name: getattr(each, field.name) for field in fields(each)}
        for each in (read_model_config(folder), config)
    )
    names = [name for name in {**asked, **found} if found.get(name) != asked.get(name)]
    return ", ".join(f"{name} {str(found.get(name))[:80]}, not {str(asked.get(name))[:80]}" for name in names)


def _told(progress: TrainerProgress) -> str:
    told = asdict(progress)
    return ", ".join(f"{name} {told[name]}" for name in ("has_critic", "lora_rank", "lora_alpha"))


def _verified_in_turns(folder: Path, world: World) -> Mapping[str, CheckpointPart]:
    """What is here. Ranks that see one folder take turns at its files; what each finds holds for all."""
    digest, failure, found = "", "", f"rank {world.index}'s"
    parts: dict[str, CheckpointPart] = {}
    try:
        digest, parts = read_manifest(folder)
        elsewhere = folder / ELSEWHERE_FILE
        found = (elsewhere.read_text() or found) if elsewhere.exists() else "everybody's"
    except CheckpointUnverified as error:
        failure = str(error)
    every = _agreed(failure, [digest, found], world)
    if len({digest for digest, _ in every}) > 1:
        raise CheckpointUnverified(f"{folder}: ranks read manifests of different checkpoints there")
    sharing = [rank for rank, (_, each) in enumerate(every) if each == found]
    here = sorted(parts_here(folder, parts), key=lambda name: parts[name].num_bytes)
    own = here[sharing.index(world.index) :: len(sharing)]
    try:
        verify_parts(folder, {name: parts[name] for name in own})
    except CheckpointUnverified as error:
        failure = str(error)
    _agreed(failure, [], world)
    return {name: parts[name] for name in here}


def _agreed(failure: str, told: Sequence[str], world: World) -> list[list[str]]:
    """What each rank tells, unless one has failed."""
    every: list[list[str]] = [json.loads(each) for each in world.exchange(json.dumps([failure, *told]).encode())]
    if failures := [f"rank {rank}: {each}" for rank, (each, *_) in enumerate(every) if each]:
        raise CheckpointUnverified("; ".join(failures))
    return [rest for _, *rest in every]
