"""Signs of life of vLLM's workers in processes of their own: each unit of work is a byte in a pipe, which the replica's
heartbeat counts.

    worker: layer, tensor, new call stack ──byte──▶ pipe ──▶ Signs.piece of the loop that waits for the worker

Invariants:
- a full pipe drops signs and holds up nobody;
- a worker moves only on its engine's orders, so its signs are those of the engine's loop.
"""

import multiprocessing
import os
import threading
import time
from contextlib import suppress
from typing import Any, Final

from torch import nn

from engine.opaque_work import OpaqueWork
from engine.signs import Signs, add_counter, still_here

PIPE: Final = "LAMINAR_WORKER_SIGNS"
LOOK_EVERY_S: Final = 1.0
TELL_EVERY_S: Final = 0.02
MOST_BYTES: Final = 1 << 16


def listen_to_workers() -> None:
    """In the replica's process, before workers start; they inherit the pipe's path. Their signs are this thread's."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.environ[PIPE] = f"/proc/{os.getpid()}/fd/{write_end}"

    def count() -> int:
        with suppress(BlockingIOError):
            return len(os.read(read_end, MOST_BYTES))
        return 0

    add_counter(count)


def speak_as_worker() -> None:
    """In a worker's process, on the thread that works; elsewhere nothing."""
    path = os.environ.get(PIPE)
    if path is None or multiprocessing.parent_process() is None:
        return
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # the replica is gone, and this process soon too
        return
    signs = _TellingSigns(pipe)
    signs.hear_this_thread()
    work = OpaqueWork(threading.get_ident())

    def look() -> None:
        while True:
            if work.has_moved():
                signs.sign()
            time.sleep(LOOK_EVERY_S)

    threading.Thread(target=look, name="signs", daemon=True).start()


class _TellingSigns(Signs):
    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe, self._told_at = pipe, 0.0

    def sign(self) -> None:
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            self._told_at = time.monotonic()
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._pipe, b".")

    def begin(self, what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> None:
        self.sign()

    def end(self) -> None:
        self.sign()


def sign_every_layer(model: nn.Module) -> None:
    """Of a model whose layers are Python's to call; in a graph they are not, and it takes a fraction of a second."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                layer.register_forward_pre_hook(_on_layer)


def _on_layer(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
    still_here()
