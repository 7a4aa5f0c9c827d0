"""Whether what an actor is about to build fits the memory that it was given: asked before anything is loaded.

On a device of its own, what cannot fit whatever its batches are is refused, with the arithmetic and what would fit: a
fault of the spec, which nobody tries again unchanged. What may not fit is a line in the log; so is everything on a CPU,
whose memory is shared with all else on the host. A model that the arithmetic does not know is not judged.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from engine.spec.fit.shape import ModelShape
from engine.spec.fit.verdict import Misfit, replica_misfit, trainer_misfit
from engine.spec.job import JobSpec

log = logging.getLogger(__name__)

Part = Literal["trainer", "replica"]
MISFITS: Final[dict[Part, Callable[[JobSpec, ModelShape, int], Misfit | None]]] = {
    "trainer": trainer_misfit,
    "replica": replica_misfit,
}


def check_fit(part: Part, spec: JobSpec, folder: Path, device: str) -> None:
    """Raises `ValueError`."""
    judge(part, spec, folder, memory_bytes=memory_of(device), is_shared=device == "cpu")


def judge(part: Part, spec: JobSpec, folder: Path, *, memory_bytes: int, is_shared: bool) -> None:
    try:
        shape = ModelShape.of_config(json.loads((folder / "config.json").read_text()))
    except ValueError as error:
        log.info("fit=unknown part=%s reason=%s", part, error)
        return
    misfit = MISFITS[part](spec, shape, memory_bytes)
    if misfit is None or (is_shared and misfit.need.counted <= memory_bytes):  # the margins are a GPU's
        return
    if misfit.is_certain and not is_shared:
        raise ValueError("\n".join(misfit.lines))
    log.warning("fit=doubtful part=%s %s", part, misfit.sentence)


def memory_of(device: str) -> int:
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import torch  # the caller is about to need it anyway

    return int(torch.cuda.get_device_properties(device).total_memory)
