"""The writer of checkpoints beside training: their content is copied at once, a thread waits for the disk.

    prepare (the copy) ──▶ writer thread: write, read back, progress beside it, upload ──▶ told

Invariants:
- checkpoints are written one after the other, in the order of their steps;
- there is one copy at a time: on a disk that is slower than training, training waits rather than memory grows;
- a loop that waits gives signs of life when the writer does, and not otherwise: a disk that hangs is found;
- where there is a store, a checkpoint is told of once it is there, and by its address there.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Semaphore, Thread
from typing import Final

from engine.live.checkpoints.resuming import finish_checkpoint, forget_older
from engine.live.checkpoints.store import RemoteCheckpoints
from engine.pipeline.messages.to_trainer import CheckpointFailed, CheckpointWritten
from engine.pipeline.records import DataProgress
from engine.policy.progress import SLOWEST_SYNC_S
from engine.signs import at_work, signs_beside

log = logging.getLogger(__name__)

LOOK_UP_EVERY_S: Final = 1.0

Act = Callable[[], object]
"""`engine.training.port.Write`; of what it answers nothing is needed."""
Told = Callable[[CheckpointWritten | CheckpointFailed], None]
Job = Callable[[], CheckpointWritten | CheckpointFailed]


class CheckpointWriter:
    def __init__(self, told: Told, remote: RemoteCheckpoints | None = None) -> None:
        """On the thread of the loop that it writes for. `told` is called on the writer's. `remote`: by default, where
        the environment says."""
        self._told, self._remote = told, remote or RemoteCheckpoints.from_environment()
        self._signs = signs_beside()
        self._line: Queue[Job] = Queue(maxsize=1)
        self._free = Semaphore(1)
        Thread(target=self._run, name="checkpoints", daemon=True).start()

    def put(self, prepare: Callable[[], Act], folder: Path, *, step: int, progress: DataProgress) -> None:
        """Waits until the one before is written, and has this one copied then."""
        while not self._is_free():
            pass
        try:
            write = prepare()
        except BaseException:
            self._free.release()
            raise
        self._line.put(partial(self._written, write, folder, step=step, progress=progress))

    def _is_free(self) -> bool:
        """While the writer is at one and the same piece of work, for which this loop may stand still as well."""
        piece = self._signs.piece
        with at_work("the disk", constant_s=SLOWEST_SYNC_S + piece.constant_s):
            while self._signs.piece.serial == piece.serial:
                if self._free.acquire(timeout=LOOK_UP_EVERY_S):
                    return True
        return False

    def _run(self) -> None:
        self._signs.hear_this_thread()
        while True:
            job = self._line.get()
            told = job()
            del job  # what was copied
            self._free.release()
            self._told(told)

    def _written(
        self, write: Act, folder: Path, *, step: int, progress: DataProgress
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
