"""Whether what an actor is about to build fits the memory that it was given: asked before anything is loaded.

On a device of its own, what cannot fit whatever its batches are is refused, with the arithmetic and what would fit: a
fault of the spec, which nobody tries again unchanged. What may not fit is a line in the log; so is everything on a CPU,
whose memory is shared with all else on the host. A model that the arithmetic does not know is not judged.
"""

import json
import logging
import os
from pathlib import Path
from typing import Literal

from engine.spec.fit.shape import ModelShape
from engine.spec.fit.verdict import replica_misfit, trainer_misfit
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)

Part = Literal["trainer", "replica"]


def check_fit(part: Part, spec: JobSpec, folder: Path, device: str, *, teacher: Path | None = None) -> None:
    """Raises `ValueError`."""
    judge(part, spec, folder, memory_bytes=memory_of(device), is_shared=device == "cpu", teacher=teacher)


def judge(
    part: Part, spec: JobSpec, folder: Path, *, memory_bytes: int, is_shared: bool, teacher: Path | None = None
) -> None:
    """`teacher`: the folder of the one that the spec names."""
    try:
        shape, its_shape = _shape(folder), None if teacher is None else _shape(teacher)
    except ValueError as error:
        log.info("fit=unknown part=%s reason=%s", part, error)
        return
    if part == "trainer":
        misfit = trainer_misfit(spec, shape, memory_bytes, teacher=its_shape)
    else:
        misfit = replica_misfit(spec, shape, memory_bytes)
    if misfit is None or (is_shared and misfit.need.counted <= memory_bytes):  # the margins are a GPU's
        return
    if misfit.is_certain and not is_shared:
        raise ValueError("\n".join(misfit.lines))
    log.warning("fit=doubtful part=%s %s", part, misfit.sentence)


def _shape(folder: Path) -> ModelShape:
    return ModelShape.of_config(json.loads((folder / "config.json").read_text()))


def memory_of(device: str) -> int:
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import torch  # the caller is about to need it anyway

    return int(torch.cuda.get_device_properties(device).total_memory)
