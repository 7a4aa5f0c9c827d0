"""Checks whether a trainer or replica fits its memory, before it loads anything.

On a device of its own, a part that cannot fit with any batch is refused, with the arithmetic and with what would fit:
a fault of the spec, which is not retried. A part that may not fit is logged; so is any misfit on a CPU, whose memory
the whole host shares. A model that the arithmetic does not know is not checked.

Host memory below the need, without the share of sandboxed processes, is a warning, since checkpoints fall back to
mapped files. Shared memory that cannot hold the weights at all is `HostTooSmall`, for the operator, before a model is
loaded for minutes.
"""

import json
import logging
import os
from pathlib import Path
from typing import Literal

from engine.fit.hosts import relay_host_need, segment_bytes, trainer_host_need
from engine.fit.need import gigabytes
from engine.fit.plan import DEVICES_PER_HOST
from engine.fit.planning import plan_trainer
from engine.fit.shape import ModelShape
from engine.fit.shared_memory import least_relay_bytes, least_trainer_bytes, shortage
from engine.fit.verdict import replica_misfit, trainer_misfit
from engine.live.process.shared_memory import shared_memory_bytes
from engine.spec.environments.workers import MEMORY_SHARE
from engine.spec.job import JobSpec
from engine.training.checkpoint.host_memory import total_bytes

log = logging.getLogger(__name__)

Part = Literal["trainer", "replica"]


class HostTooSmall(Exception):
    """The host's shared memory cannot hold the model's weights."""


def check_fit(
    part: Part,
    spec: JobSpec,
    folder: Path,
    device: str,
    *,
    teacher: Path | None = None,
    devices_per_host: int = DEVICES_PER_HOST,
) -> None:
    """Raises `ValueError` if the device is too small for the spec, `HostTooSmall` if the host's shared memory is.
    `devices_per_host`: of a trainer."""
    judge(
        part,
        spec,
        folder,
        memory_bytes=memory_of(device),
        is_shared=device == "cpu",
        teacher=teacher,
        devices_per_host=devices_per_host,
    )
    judge_host(part, spec, folder, shared_bytes=shared_memory_bytes(), host_bytes=total_bytes(), teacher=teacher)


def judge(
    part: Part,
    spec: JobSpec,
    folder: Path,
    *,
    memory_bytes: int,
    is_shared: bool,
    teacher: Path | None = None,
    devices_per_host: int = DEVICES_PER_HOST,
) -> None:
    """`teacher`: the folder of the spec's teacher."""
    try:
        shape, teacher_shape = _read_shape(folder), None if teacher is None else _read_shape(teacher)
    except ValueError as error:
        log.info("fit=unknown part=%s reason=%s", part, error)
        return
    if part == "trainer":
        misfit = trainer_misfit(spec, shape, memory_bytes, teacher=teacher_shape, devices_per_host=devices_per_host)
    else:
        misfit = replica_misfit(spec, shape, memory_bytes)
    if misfit is None or (is_shared and misfit.need.counted <= memory_bytes):  # the margins hold for GPUs
        return
    if misfit.is_certain and not is_shared:
        raise ValueError("\n".join(misfit.lines))
    log.warning("fit=doubtful part=%s %s", part, misfit.sentence)


def judge_host(
    part: Part, spec: JobSpec, folder: Path, *, shared_bytes: int, host_bytes: int, teacher: Path | None = None
) -> None:
    """Checks a host's memory; a replica's host for its relay."""
    try:
        shape, teacher_shape = _read_shape(folder), None if teacher is None else _read_shape(teacher)
    except ValueError:  # logged by `judge`
        return
    rank = spec.trainer.lora_rank
    if part == "trainer":
        least = least_trainer_bytes(shape, lora_rank=rank, num_ranks=spec.trainer_devices)
        wanted = segment_bytes(shape, rank)
        plan = None if spec.only_evaluates else plan_trainer(spec, shape, teacher=teacher_shape)
        need = None if plan is None else trainer_host_need(shape, plan)
    else:
        least = least_relay_bytes(shape, lora_rank=rank, only_evaluates=spec.only_evaluates)
        need = relay_host_need(shape, lora_rank=rank, num_relays=spec.rollout.replicas)
        wanted = need.num_bytes
    holder = f"host {os.uname().nodename}"
    if shared_bytes < least:
        raise HostTooSmall(shortage(holder=holder, num_bytes=shared_bytes, needed_bytes=wanted))
    if shared_bytes < wanted:
        log.warning(
            "fit=doubtful part=%s %s", part, shortage(holder=holder, num_bytes=shared_bytes, needed_bytes=wanted)
        )
    usable_bytes = int((1 - MEMORY_SHARE) * host_bytes)
    if need is not None and need.num_bytes > usable_bytes:
        log.warning(
            "fit=doubtful part=%s %s has %s of memory, without the share of graders and tools. %s",
            part, holder, gigabytes(usable_bytes), need.lines[0],
        )  # fmt: skip


def _read_shape(folder: Path) -> ModelShape:
    return ModelShape.of_config(json.loads((folder / "config.json").read_text()))


def memory_of(device: str) -> int:
    if device == "cpu":
        return total_bytes()
    import torch  # the caller needs it anyway

    return int(torch.cuda.get_device_properties(device).total_memory)
