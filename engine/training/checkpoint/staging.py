"""Host memory for the copy that a checkpoint is written from: taken once, filled again for every checkpoint.

    short of memory?   no   pages of its own (pinned, beside a GPU): the copy goes as fast as memory does
                       yes  a mapped file beside the checkpoints, which the system may write out and drop at any time

Invariants:
- training stands still for the copy and nothing else, from the second checkpoint on;
- a mapped file has its room on the disk before anything is written to it: a full disk is an OSError, and never the end
  of the process;
- one copy at a time is here: what prepares the next waits until this one is written.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from engine.signs import at_work
from engine.training.checkpoint.host_memory import spare_bytes

# So that every tensor begins where any number may.
_ALIGNMENT: Final = 64


class Spare(Protocol):
    def __call__(self, *, num_sharing: int) -> int: ...


class Staging:
    def __init__(self, device: torch.device, spare: Spare = spare_bytes) -> None:
        self._device, self._spare = device, spare
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.is_mapped = False

    @torch.no_grad()
    def hold(self, tensors: Mapping[str, Tensor], *, beside: Path, num_sharing: int) -> dict[str, Tensor]:
        """Copies, which last until the next call. `beside`: a folder on the disk that is written to; `num_sharing`:
        processes of this host that take as much."""
        self._make_room(sum(map(_room, tensors.values())), beside=beside, num_sharing=num_sharing)
        held: dict[str, Tensor] = {}
        for (name, tensor), place in zip(tensors.items(), self._places(tensors), strict=True):
            held[name] = place.view(tensor.dtype).view(tensor.shape)
            with at_work("copy", num_bytes=tensor.nbytes):
                held[name].copy_(tensor.detach())
        return held

    def _places(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
        begin = 0
        for tensor in tensors.values():
            yield self._memory[begin : begin + tensor.nbytes]
            begin += _room(tensor)

    def _make_room(self, num_bytes: int, *, beside: Path, num_sharing: int) -> None:
        if num_bytes <= len(self._memory):
            return
        self._memory = torch.empty(0, dtype=torch.uint8)  # given back before more is asked for
        self.is_mapped = num_bytes > self._spare(num_sharing=num_sharing)
        if self.is_mapped:
            self._memory = _mapped(num_bytes, beside)
        else:
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")


def _mapped(num_bytes: int, beside: Path) -> Tensor:
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=beside) as file:  # it has no name, so nobody has to tidy it away
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return torch.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype=torch.uint8)


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
