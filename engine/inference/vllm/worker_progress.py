"""Progress of vLLM's worker processes: each unit of work is a byte in a pipe, which the replica's heartbeat counts.

    worker: layer, tensor, new call stack ──byte──▶ pipe ──▶ LoopProgress.piece of the loop that waits for the worker

Invariants:
- a full pipe drops bytes and blocks no worker;
- a worker works only on its engine's orders, so its progress counts as that of the engine's loop.
"""

import multiprocessing
import os
import threading
import time
from contextlib import suppress
from typing import Any, Final

from torch import nn

from engine.process.opaque_work import OpaqueWork
from engine.process.progress import LoopProgress, add_counter, report_progress

PIPE: Final = "LAMINAR_WORKER_SIGNS"
LOOK_EVERY_S: Final = 1.0
SEND_EVERY_S: Final = 0.02
MOST_BYTES: Final = 1 << 16


def listen_to_workers() -> None:
    """Call it in the replica's process before workers start, which inherit the pipe's path. Their progress counts as
    this thread's."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.environ[PIPE] = f"/proc/{os.getpid()}/fd/{write_end}"

    def count() -> int:
        with suppress(BlockingIOError):
            return len(os.read(read_end, MOST_BYTES))
        return 0

    add_counter(count)


def report_as_worker() -> None:
    """Call it in a worker's process, on the working thread; a no-op elsewhere."""
    path = os.environ.get(PIPE)
    if path is None or multiprocessing.parent_process() is None:
        return
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # the replica has ended, and this process will end soon
        return
    progress = _PipeProgress(pipe)
    progress.attach_thread()
    work = OpaqueWork(threading.get_ident())

    def look() -> None:
        while True:
            if work.has_moved():
                progress.advance()
            time.sleep(LOOK_EVERY_S)

    threading.Thread(target=look, name="progress", daemon=True).start()


class _PipeProgress(LoopProgress):
    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe, self._sent_at = pipe, 0.0

    def advance(self) -> None:
        if time.monotonic() - self._sent_at >= SEND_EVERY_S:
            self._sent_at = time.monotonic()
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._pipe, b".")

    def begin(self, what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> None:
        self.advance()

    def end(self) -> None:
        self.advance()


def report_every_layer(model: nn.Module) -> None:
    """For models whose layers Python calls; in a graph it does not, but a graph takes only a fraction of a second."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                layer.register_forward_pre_hook(_on_layer)


def _on_layer(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
    report_progress()
