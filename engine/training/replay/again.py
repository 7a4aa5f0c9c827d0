"""Replays a recorded step with as many ranks as recorded it, all on this machine.

Invariant: the replay uses only the recorded files: the checkpoint's state, the batch, the settings and the number of
threads. Ranks connect as in a job, but without Ray.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file

from engine.models.loading import resolve_model
from engine.spec.job import JobSpec
from engine.training.factory import build_trainer
from engine.training.ranks.world import World
from engine.training.replay.batch import from_tensors
from engine.training.replay.deterministic import deterministic_kernels, fix_workspace
from engine.training.replay.record import BATCH_FILE, BEGIN, StepRecord
from engine.training.replay.recording import train_witnessed
from engine.training.settings import TrainerSettings
from engine.training.step.models import needs_reference
from engine.training.trainer import Trainer

ENDED_WITHIN_S: Final = 60.0

MakeTrainer = Callable[..., Trainer]


def train_again(folder: Path, record: StepRecord, into: Path, *, model: Path | None = None) -> None:
    """`model`: the current folder of the job's model. Raises `ValueError` if the step cannot be trained here."""
    spec = JobSpec.accepted(record.spec)
    num_ranks = record.num_ranks
    if torch.cuda.is_available() and torch.cuda.device_count() < num_ranks:
        raise ValueError(
            f"{folder}: recorded by {num_ranks} ranks with one device each; this machine has "
            f"{torch.cuda.device_count()}. Replay it on a machine with {num_ranks} devices or more"
        )
    fix_workspace()
    make = partial(build_trainer, _find_model(folder, record, spec, model), TrainerSettings.of(spec))
    into.mkdir(parents=True, exist_ok=True)
    if num_ranks == 1:
        trainer = make(device=_select_device(0))
        _train(trainer, folder, into, record.machine.threads)
        trainer.close()
        return
    world = World.open(num_ranks=num_ranks, host="127.0.0.1")
    _set_host(world, record)
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=_run_other_rank, args=(make, world.address, rank, num_ranks, folder, into, record))
        for rank in range(1, num_ranks)
    ]
    for other in others:
        other.start()
    try:
        trainer = make(device=_select_device(0), world=world)
        _train(trainer, folder, into, record.machine.threads)
        trainer.close()
    finally:
        _end_processes(others)


def _run_other_rank(
    make: MakeTrainer, address: str, rank: int, num_ranks: int, folder: Path, into: Path, record: StepRecord
) -> None:
    world = World.join(address, rank=rank, num_ranks=num_ranks)
    _set_host(world, record)
    trainer = make(device=_select_device(rank), world=world)
    own = into / f"rank-{rank}"
    own.mkdir()
    _train(trainer, folder, into, record.machine.threads, computed=own)
    trainer.close()


def _set_host(world: World, record: StepRecord) -> None:
    """Groups the ranks as on the hosts that recorded the step, which made their sums in that order."""
    if record.ranks_per_host is not None:
        world.host = f"recorded-{world.index // record.ranks_per_host}"


def _train(trainer: Trainer, folder: Path, into: Path, threads: int, *, computed: Path | None = None) -> None:
    torch.set_num_threads(threads)
    trainer.load(folder / BEGIN)
    with deterministic_kernels():
        train_witnessed(trainer, from_tensors(load_file(folder / BATCH_FILE)), into, computed=computed)


def _find_model(folder: Path, record: StepRecord, spec: JobSpec, given: Path | None) -> Path:
    """The checkpoint is a model itself; a reference or an adapter's base is the model that the job began with."""
    if not needs_reference(spec.algorithm) and not spec.trainer.lora_rank:
        return folder / BEGIN
    model = given or Path(record.model)
    if not (model / "config.json").is_file():
        raise ValueError(
            f"--model: no model at {model}; give the folder of the job's model, which its reference or adapter needs"
        )
    return resolve_model(str(model))


def _select_device(rank: int) -> str:
    if not torch.cuda.is_available():
        return "cpu"
    torch.cuda.set_device(rank)
    return "cuda"


def _end_processes(others: Sequence[BaseProcess]) -> None:
    for other in others:
        other.join(ENDED_WITHIN_S)
        if other.is_alive():
            other.kill()
