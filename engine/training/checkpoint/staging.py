"""Host memory for the copy from which a checkpoint is written: allocated once, filled again for every checkpoint.

    short of memory?   no   anonymous pages (pinned for a GPU): the copy runs at the speed of memory
                       yes  a mapped file next to the checkpoints, whose pages the system may write out at any time

Invariants:
- training waits only for the copy: if a step is known to precede a checkpoint, a thread of the lowest priority touches
  the memory's pages during that step;
- a copy does not wait for that thread to finish: the copy itself touches the remaining pages;
- a mapped file's room on the disk is allocated before any write to it: a full disk raises OSError and never kills the
  process;
- there is one copy at a time: the next `hold` comes only after the previous copy is written.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, get_native_id
from typing import Final, Protocol

import torch
from torch import Tensor

from engine.models.pieces import copy_tensor
from engine.process.progress import working
from engine.training.checkpoint.host_memory import spare_bytes

# Every tensor begins at a multiple of this, which suits every dtype.
_ALIGNMENT: Final = 64
# Pages touched in one go; an early copy waits for at most one such piece.
_PIECE_BYTES: Final = 1 << 26
_LEAST_PRIORITY: Final = 19


class Spare(Protocol):
    def __call__(self, *, num_sharing: int) -> int: ...


class Staging:
    def __init__(self, device: torch.device, spare: Spare = spare_bytes) -> None:
        self._device, self._spare = device, spare
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._touching: Future[None] | None = None
        self._is_needed = Event()
        self.is_mapped = False

    def get_ready(self, tensors: Mapping[str, Tensor], *, num_sharing: int) -> None:
        """Allocates memory for a `hold` of as much, on another thread. Does nothing if memory is short: touching a
        mapped file's pages would only write them to the disk."""
        num_bytes = sum(map(_round_up, tensors.values()))
        if self._touching is None and len(self._memory) < num_bytes <= self._spare(num_sharing=num_sharing):
            on = torch.cuda.current_device() if self._device.type == "cuda" else None
            executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="staging")
            self._touching = executor.submit(self._touch_pages, num_bytes, on)
            executor.shutdown(wait=False)

    def wait_until_ready(self) -> None:
        if self._touching is not None:
            self._touching.result()

    @torch.no_grad()
    def hold(self, tensors: Mapping[str, Tensor], *, folder: Path, num_sharing: int) -> dict[str, Tensor]:
        """Copies tensors; the copies last until the next call. `folder`: for a mapped file, on the checkpoints' disk;
        `num_sharing`: the processes of this host that copy as much."""
        self._make_room(sum(map(_round_up, tensors.values())), folder=folder, num_sharing=num_sharing)
        held: dict[str, Tensor] = {}
        for (name, tensor), place in zip(tensors.items(), self._places(tensors), strict=True):
            held[name] = place.view(tensor.dtype).view(tensor.shape)
            copy_tensor(held[name], tensor.detach(), what="copy")
        return held

    def _places(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
        begin = 0
        for tensor in tensors.values():
            yield self._memory[begin : begin + tensor.nbytes]
            begin += _round_up(tensor)

    def _make_room(self, num_bytes: int, *, folder: Path, num_sharing: int) -> None:
        if self._touching is not None:
            self._is_needed.set()
            with working("map", is_opaque=True):
                wait([self._touching])  # if it failed, the allocation below fails too, and raises
            self._touching = None
        if num_bytes <= len(self._memory):
            return
        self._memory = torch.empty(0, dtype=torch.uint8)  # frees the memory before allocating more
        self.is_mapped = num_bytes > self._spare(num_sharing=num_sharing)
        with working("map", is_opaque=True):  # one call, of hundreds of gigabytes
            self._memory = _map_file(num_bytes, folder) if self.is_mapped else self._allocate(num_bytes)

    def _allocate(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")

    def _touch_pages(self, num_bytes: int, device: int | None) -> None:
        """Allocates memory and touches its pages, on a separate thread."""
        os.setpriority(os.PRIO_PROCESS, get_native_id(), _LEAST_PRIORITY)
        if device is not None:
            torch.cuda.set_device(device)  # the current device is per thread
        self._memory = self._allocate(num_bytes)  # pinned pages are touched by this
        pages = self._memory.numpy()
        for start in range(0, num_bytes, _PIECE_BYTES):
            if self._is_needed.is_set():
                return
            pages[start : start + _PIECE_BYTES : mmap.PAGESIZE] = 0  # numpy releases the interpreter's lock


def _map_file(num_bytes: int, folder: Path) -> Tensor:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:  # has no name, so needs no cleanup
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return torch.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype=torch.uint8)


def _round_up(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
