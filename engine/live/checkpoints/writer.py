"""Writes checkpoints in parallel with training: the loop copies their content, a thread waits for the disk.

    prepare (the copy) ──▶ writer thread: write, read back, add the progress, upload ──▶ report

Invariants:
- checkpoints are written one after the other, in the order of their steps;
- there is one copy at a time: if the disk is slower than training, training waits, so memory does not grow;
- a waiting loop reports progress only when the writer does, so a hanging disk is detected;
- with a store, a checkpoint is reported once it is uploaded, by its address there.
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
from engine.process.progress import worker_progress, working

log = logging.getLogger(__name__)

LOOK_UP_EVERY_S: Final = 1.0

Act = Callable[[], object]
"""`engine.training.port.Write`; its result is not used."""
Report = Callable[[CheckpointWritten | CheckpointFailed], None]
Job = Callable[[], CheckpointWritten | CheckpointFailed]


class CheckpointWriter:
    def __init__(self, report: Report, remote: RemoteCheckpoints | None = None) -> None:
        """Called on the thread of its loop. `report` is called on the writer's thread. `remote`: by default the
        environment's."""
        self._report, self._remote = report, remote or RemoteCheckpoints.from_environment()
        self._progress = worker_progress()
        self._queue: Queue[Job] = Queue(maxsize=1)
        self._free = Semaphore(1)
        Thread(target=self._run, name="checkpoints", daemon=True).start()

    def put(self, prepare: Callable[[], Act], folder: Path, *, step: int, progress: DataProgress) -> None:
        """Waits until the previous checkpoint is written, then copies this one."""
        while not self._wait_for_writer():
            pass
        try:
            write = prepare()
        except BaseException:
            self._free.release()
            raise
        self._queue.put(partial(self._write, write, folder, step=step, progress=progress))

    def _wait_for_writer(self) -> bool:
        """Waits while the writer is at the same piece of work, with that piece's timeout. True once it is free."""
        piece = self._progress.piece
        with working("the disk", constant_s=SLOWEST_SYNC_S + piece.constant_s):
            while self._progress.piece.serial == piece.serial:
                if self._free.acquire(timeout=LOOK_UP_EVERY_S):
                    return True
        return False

    def _run(self) -> None:
        self._progress.attach_thread()
        while True:
            job = self._queue.get()
            result = job()
            del job  # frees the copy
            self._free.release()
            self._report(result)

    def _write(
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
        except Exception as error:  # a full disk, an unreachable store, a bug: the brain decides
            log.warning("checkpoint of step %d failed", step, exc_info=error)
            return CheckpointFailed(
                step=step, reason=str(error) or type(error).__name__, is_of_storage=isinstance(error, OSError)
            )
