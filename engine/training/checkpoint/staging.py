"""Host memory for the copy that a checkpoint is written from: taken once, filled again for every checkpoint.

    short of memory?   no   pages of its own (pinned, beside a GPU): the copy goes as fast as memory does
                       yes  a mapped file beside the checkpoints, which the system may write out and drop at any time

Invariants:
- training stands still for the copy and nothing else: where it is said before a step that a checkpoint follows it, the
  memory's pages are found beside that step, by a thread that takes only what time others leave;
- whoever copies waits for no such thread: what it has not found yet, the copy finds;
- a mapped file has its room on the disk before anything is written to it: a full disk is an OSError, and never the end
  of the process;
- one copy at a time is here: what prepares the next waits until this one is written.
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
from engine.signs import at_work
from engine.training.checkpoint.host_memory import spare_bytes

# So that every tensor begins where any number may.
_ALIGNMENT: Final = 64
# Found in one go, of which a copy that has come too soon waits for one.
_PIECE_BYTES: Final = 1 << 26
_LEAST_PRIORITY: Final = 19


class Spare(Protocol):
    def __call__(self, *, num_sharing: int) -> int: ...


class Staging:
    def __init__(self, device: torch.device, spare: Spare = spare_bytes) -> None:
        self._device, self._spare = device, spare
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._finding: Future[None] | None = None
        self._is_needed = Event()
        self.is_mapped = False

    def get_ready(self, tensors: Mapping[str, Tensor], *, num_sharing: int) -> None:
        """For `hold` of as much, beside what goes on. Where memory is short, nothing: a file's pages would be written
        to the disk for it."""
        num_bytes = sum(map(_room, tensors.values()))
        if self._finding is None and len(self._memory) < num_bytes <= self._spare(num_sharing=num_sharing):
            on = torch.cuda.current_device() if self._device.type == "cuda" else None
            beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="staging")
            self._finding = beside.submit(self._find, num_bytes, on)
            beside.shutdown(wait=False)

    def wait_until_ready(self) -> None:
        if self._finding is not None:
            self._finding.result()

    @torch.no_grad()
    def hold(self, tensors: Mapping[str, Tensor], *, beside: Path, num_sharing: int) -> dict[str, Tensor]:
        """Copies, which last until the next call. `beside`: a folder on the disk that is written to; `num_sharing`:
        processes of this host that take as much."""
        self._make_room(sum(map(_room, tensors.values())), beside=beside, num_sharing=num_sharing)
        held: dict[str, Tensor] = {}
        for (name, tensor), place in zip(tensors.items(), self._places(tensors), strict=True):
            held[name] = place.view(tensor.dtype).view(tensor.shape)
            copy_tensor(held[name], tensor.detach(), what="copy")
        return held

    def _places(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
        begin = 0
        for tensor in tensors.values():
            yield self._memory[begin : begin + tensor.nbytes]
            begin += _room(tensor)

    def _make_room(self, num_bytes: int, *, beside: Path, num_sharing: int) -> None:
        if self._finding is not None:
            self._is_needed.set()
            with at_work("map", is_opaque=True):
                wait([self._finding])  # if it failed, it will now, where somebody hears it
            self._finding = None
        if num_bytes <= len(self._memory):
            return
        self._memory = torch.empty(0, dtype=torch.uint8)  # given back before more is asked for
        self.is_mapped = num_bytes > self._spare(num_sharing=num_sharing)
        with at_work("map", is_opaque=True):  # one call, of hundreds of gigabytes
            self._memory = _mapped(num_bytes, beside) if self.is_mapped else self._own_pages(num_bytes)

    def _own_pages(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")

    def _find(self, num_bytes: int, device: int | None) -> None:
        """On a thread of its own."""
        os.setpriority(os.PRIO_PROCESS, get_native_id(), _LEAST_PRIORITY)
        if device is not None:
            torch.cuda.set_device(device)  # each thread has its own
        self._memory = self._own_pages(num_bytes)  # pinned ones are there with this
        pages = self._memory.numpy()
        for start in range(0, num_bytes, _PIECE_BYTES):
            if self._is_needed.is_set():
                return
            pages[start : start + _PIECE_BYTES : mmap.PAGESIZE] = 0  # without the interpreter's lock


def _mapped(num_bytes: int, beside: Path) -> Tensor:
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=beside) as file:  # it has no name, so nobody has to tidy it away
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return torch.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype=torch.uint8)


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
