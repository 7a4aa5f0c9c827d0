"""Builds the trainer of a job: chooses its sharding, and imports only that one."""

from pathlib import Path
from typing import Final

from engine.spec.job import TrainerSpec
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.sharding import MakeSharding
from engine.training.trainer import Trainer

# The world of all trainers in this process that have no other ranks.
ALONE: Final = World.alone()


def build_trainer(model_folder: Path, settings: TrainerSettings, *, device: str, world: World | None = None) -> Trainer:
    """`world`: the ranks to train with, by default none."""
    sharding = choose_sharding(settings.trainer, has_ranks=world is not None)
    return Trainer(model_folder, settings, device=device, world=world or ALONE, sharding=sharding)


def choose_sharding(spec: TrainerSpec, *, has_ranks: bool) -> MakeSharding:
    if spec.backend == "deepspeed":
        from engine.training.zero.sharding import ZeroSharding

        return ZeroSharding
    if has_ranks:
        from engine.training.fsdp.sharding import FsdpSharding

        return FsdpSharding
    from engine.training.whole.sharding import WholeSharding

    return WholeSharding
