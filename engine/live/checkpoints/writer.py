"""The writer of checkpoints beside training: their content is copied at once, a thread waits for the disk.

    prepare (the copy) ──▶ one in line ──▶ writer thread: write, read back, progress beside it, upload ──▶ told

Invariants:
- checkpoints are written one after the other, in the order of their steps;
- at most one copy waits: on a disk that is slower than training, training waits rather than memory grows;
- where there is a store, a checkpoint is told of once it is there, and by its address there.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Final

from engine.live.checkpoints.resuming import finish_checkpoint
from engine.live.checkpoints.store import RemoteCheckpoints, forget_older
from engine.pipeline.messages.to_trainer import CheckpointFailed, CheckpointWritten
from engine.pipeline.records import DataProgress
from engine.signs import still_here
from engine.training.port import Write

log = logging.getLogger(__name__)

LOOK_UP_EVERY_S: Final = 1.0

Told = Callable[[CheckpointWritten | CheckpointFailed], None]


class CheckpointWriter:
    def __init__(self, told: Told, remote: RemoteCheckpoints | None = None) -> None:
        """`told` is called on the writer's thread. `remote`: by default, where the environment says."""
        self._told, self._remote = told, remote or RemoteCheckpoints.from_environment()
        self._line: Queue[Callable[[], CheckpointWritten | CheckpointFailed]] = Queue(maxsize=1)
        Thread(target=self._run, name="checkpoints", daemon=True).start()

    def put(self, write: Write, folder: Path, *, step: int, progress: DataProgress) -> None:
        """Waits for the disk, if one waits already."""
        job = partial(self._written, write, folder, step=step, progress=progress)
        while True:
            try:
                self._line.put(job, timeout=LOOK_UP_EVERY_S)
                return
            except Full:
                still_here()

    def _run(self) -> None:
        while True:
            job = self._line.get()
            self._told(job())
            del job  # the copy

    def _written(
        self, write: Write, folder: Path, *, step: int, progress: DataProgress
    ) -> CheckpointWritten | CheckpointFailed:
        try:
            write()
            written = finish_checkpoint(folder, step=step, progress=progress)
            if self._remote is None:
                return written
            uri = self._remote.upload(folder)
            forget_older(folder)
            return replace(written, uri=uri)
        except (
            Exception
        ) as error:  # a full disk, a store that is away, a bug; the brain decides what becomes of the run
            log.warning("checkpoint of step %d failed", step, exc_info=error)
            return CheckpointFailed(step=step, reason=str(error) or type(error).__name__)
