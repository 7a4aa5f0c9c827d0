"""A recorded step, trained again by as many ranks as recorded it, all of them on this machine.

Invariant: what is trained is what the files hold: the state of the checkpoint, the batch, the recorded settings and
number of threads. Ranks meet as they do in a job, without Ray.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

from engine.models.loading import resolve_model
from engine.spec.job import JobSpec
from engine.training.port import Trainer
from engine.training.ranks.world import World
from engine.training.replay.batch import from_tensors
from engine.training.replay.deterministic import deterministic_kernels, fix_workspace
from engine.training.replay.record import BATCH_FILE, BEGIN, StepRecord
from engine.training.replay.recording import train_witnessed
from engine.training.settings import TrainerSettings
from engine.training.step.models import needs_reference

ENDED_WITHIN_S: Final = 60.0

MakeTrainer = Callable[..., Any]


def train_again(folder: Path, record: StepRecord, into: Path, *, model: Path | None = None) -> None:
    """`model`: where the job's own model is now. Raises `ValueError` for what cannot be trained here."""
    spec = JobSpec.accepted(record.spec)
    num_ranks = record.num_ranks
    if torch.cuda.is_available() and torch.cuda.device_count() < num_ranks:
        raise ValueError(
            f"{folder}: recorded by {num_ranks} ranks, a device each; this machine has {torch.cuda.device_count()}. "
            f"Another number of ranks adds up in another order"
        )
    fix_workspace()
    make = _maker(spec, _model_of(folder, record, spec, model), num_ranks)
    into.mkdir(parents=True, exist_ok=True)
    if num_ranks == 1 and spec.trainer.backend == "torch":
        _train(make(device=_device(0)), folder, into, record.machine.threads)
        return
    world = World.open(num_ranks=num_ranks, host="127.0.0.1")
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=_other_rank, args=(make, world.address, rank, num_ranks, folder, into, record))
        for rank in range(1, num_ranks)
    ]
    for other in others:
        other.start()
    try:
        trainer = make(device=_device(0), world=world)
        _train(trainer, folder, into, record.machine.threads)
        trainer.close()
    finally:
        _end(others)


def _other_rank(
    make: MakeTrainer, address: str, rank: int, num_ranks: int, folder: Path, into: Path, record: StepRecord
) -> None:
    world = World.join(address, rank=rank, num_ranks=num_ranks)
    trainer = make(device=_device(rank), world=world)
    own = into / f"rank-{rank}"
    own.mkdir()
    _train(trainer, folder, into, record.machine.threads, computed=own)
    trainer.close()


def _train(trainer: Trainer, folder: Path, into: Path, threads: int, *, computed: Path | None = None) -> None:
    torch.set_num_threads(threads)
    trainer.load(folder / BEGIN)
    with deterministic_kernels():
        train_witnessed(trainer, from_tensors(load_file(folder / BATCH_FILE)), into, computed=computed)


def _maker(spec: JobSpec, model: Path, num_ranks: int) -> MakeTrainer:
    settings = TrainerSettings.of(spec)
    if spec.trainer.backend == "torch" and num_ranks == 1:
        from engine.training.torch_trainer import TorchTrainer

        return partial(TorchTrainer, model, settings)
    if spec.trainer.backend == "torch":
        from engine.training.fsdp.trainer import FsdpTrainer

        return partial(FsdpTrainer, model, settings)
    from engine.training.zero.trainer import DeepSpeedTrainer

    return partial(DeepSpeedTrainer, model, settings)


def _model_of(folder: Path, record: StepRecord, spec: JobSpec, given: Path | None) -> Path:
    """The checkpoint is a model itself. A reference and an adapter's base are the job's first one."""
    if not needs_reference(spec.algorithm) and not spec.trainer.lora_rank:
        return folder / BEGIN
    model = given or Path(record.model)
    if not (model / "config.json").is_file():
        raise ValueError(
            f"--model: the folder of the job's model, which its reference or adapter begins with; nothing is at {model}"
        )
    return resolve_model(str(model))


def _device(rank: int) -> str:
    if not torch.cuda.is_available():
        return "cpu"
    torch.cuda.set_device(rank)
    return "cuda"


def _end(others: Sequence[BaseProcess]) -> None:
    for other in others:
        other.join(ENDED_WITHIN_S)
        if other.is_alive():
            other.kill()
