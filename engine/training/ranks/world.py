"""This process's place among the ranks of a trainer of several devices.

Invariants:
- a process is in one world at a time; its trainers share it, and the last that leaves takes the process group down. A
  group that somebody else started is never used: entering then is a ValueError;
- every collective of the group ends within `timeout_s`: with the peers' data or with an exception;
- `assemble` and `exchange` have connections of their own, and may go on beside everything else, on one thread. They
  last as long as the slowest rank's disk; a rank that dies ends them. Who waits in `exchange` gives signs of life when
  another rank has told one, and not otherwise.
"""

import atexit
import gc
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from functools import cache, cached_property
from typing import Any, Final, Self

import torch
import torch.distributed as torch_distributed
from torch import Tensor
from torch.distributed import HashStore, PrefixStore, Store, TCPStore, Work  # type: ignore[attr-defined]

from engine.signs import Signs, still_here

# A rank may wait this long for the others: longer than one share of a large step takes, since
# all start a call together; short enough for a frozen host to be a failed attempt and not a lost night.
COLLECTIVE_TIMEOUT_S: Final = 600.0

# Who waits so long for another rank ends with it: their owner is rank 0's process, which somebody watches.
AS_LONG_AS_IT_TAKES: Final = timedelta(days=7)

LOOK_UP_EVERY_S: Final = 0.02
_SIGNS: Final = "signs"


class World:
    """The ranks of one trainer: one alone, or one process that opens a rendezvous and others that join it."""

    def __init__(self, *, rank: int, num_ranks: int, store: Store, address: str, timeout_s: float) -> None:
        self.index, self.count, self.address = rank, num_ranks, address
        self.timeout_s = timeout_s
        self._store = store
        self._num_members = 0
        self._num_groups = 0
        self._beside: Any = None
        self._meanwhile = ExitStack()

    @classmethod
    def alone(cls) -> Self:
        return cls(rank=0, num_ranks=1, store=HashStore(), address="", timeout_s=COLLECTIVE_TIMEOUT_S)

    @classmethod
    def open(cls, *, num_ranks: int, host: str, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> Self:
        """Rank 0, which the others find at `address`."""
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
        return cls(rank=0, num_ranks=num_ranks, store=store, address=f"{host}:{store.port}", timeout_s=timeout_s)

    @classmethod
    def join(cls, address: str, *, rank: int, num_ranks: int, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> Self:
        host, _, port = address.rpartition(":")
        store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout_s))
        return cls(rank=rank, num_ranks=num_ranks, store=store, address=address, timeout_s=timeout_s)

    def enter(self, device: str, meanwhile: AbstractContextManager[None] | None = None) -> None:
        """One more trainer of this world; the first one meets the other ranks here. `meanwhile`: a context
        that holds from then until the last one has left; the first one's counts."""
        if not self._num_members:
            if torch_distributed.is_initialized():
                raise ValueError("trainer.backend: a process group that is not this trainer's runs in this process")
            _collect_at_exit()
            report = sys.excepthook
            torch_distributed.init_process_group(
                "nccl" if device.startswith("cuda") else "gloo",
                # A store remembers the keys of a group that has gone; each group has its own.
                store=PrefixStore(f"group-{self._num_groups}", self._store),
                rank=self.index,
                world_size=self.count,
                timeout=timedelta(seconds=self.timeout_s),
                device_id=torch.device("cuda", torch.cuda.current_device()) if device.startswith("cuda") else None,
            )
            if self.count > 1:
                self._beside = torch_distributed.new_group(backend="gloo", timeout=AS_LONG_AS_IT_TAKES)
            sys.excepthook = report  # torch wraps it once more for every group
            self._num_groups += 1
            if meanwhile is not None:
                self._meanwhile.enter_context(meanwhile)
        self._num_members += 1

    def leave(self) -> None:
        self._num_members -= 1
        if not self._num_members:
            self._meanwhile.close()
            self._beside = None
            if torch_distributed.is_initialized():
                torch_distributed.destroy_process_group()

    def abandon(self, device: str) -> None:
        """For a rank that can make no trainer: the others, who wait for it where they meet, lose it there at once."""
        if not self._num_groups:
            self.enter(device)
            self.leave()

    # Ranks -------------------------------------------------------------------------------------------------------

    def sum(self, tensor: Tensor) -> Tensor:
        """The same bits on each rank."""
        total = tensor.clone()
        torch_distributed.all_reduce(total)
        return total

    def max(self, tensor: Tensor) -> Tensor:
        largest = tensor.clone()
        torch_distributed.all_reduce(largest, torch_distributed.ReduceOp.MAX)
        return largest

    def send(self, tensor: Tensor) -> Tensor:
        """Rank 0's, into everybody's."""
        torch_distributed.broadcast(tensor, 0)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's, of one shape, on rank 0; on the others nothing."""
        every = [torch.empty_like(tensor) for _ in range(self.count)] if self.index == 0 else None
        torch_distributed.gather(tensor, every, 0)
        return every or []

    def scatter(self, tensors: Sequence[Tensor], into: Tensor) -> Tensor:
        """Each its own from rank 0, which has one of one shape for each; what the others give is not looked at."""
        torch_distributed.scatter(into, list(tensors) if self.index == 0 else None, 0)
        return into

    def count_on_this_host(self) -> int:
        """Ranks. Collective."""
        host = socket.gethostname().encode()
        return self.exchange(host).count(host)

    # Beside training ---------------------------------------------------------------------------------------------

    def assemble(self, own: Tensor, spans: Sequence[range], *, on: int) -> Tensor | None:
        """The values that each rank has a span of, put together on one. On the host, flat."""
        if self.count == 1:
            return own
        if self.index != on:
            if len(own):
                torch_distributed.send(own.contiguous().view(torch.uint8), on, group=self._beside)
            return None
        whole = torch.empty(sum(map(len, spans)), dtype=own.dtype)
        for rank, span in enumerate(spans):
            part = whole[span.start : span.stop]
            if rank == on:
                part.copy_(own)
            elif len(span):
                torch_distributed.recv(part.view(torch.uint8), rank, group=self._beside)
        return whole

    def exchange(self, told: bytes) -> list[bytes]:
        """What each rank tells, on every rank."""
        if self.count == 1:
            return [told]
        sizes = [int(size.item()) for size in self._from_each(torch.tensor([len(told)]))]
        padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        padded[: len(told)] = torch.frombuffer(bytearray(told), dtype=torch.uint8) if told else padded[:0]
        every = self._from_each(padded)
        return [each[:size].numpy().tobytes() for each, size in zip(every, sizes, strict=True)]

    def _from_each(self, tensor: Tensor) -> list[Tensor]:
        every = [torch.empty_like(tensor) for _ in range(self.count)]
        work: Work = torch_distributed.all_gather(every, tensor, group=self._beside, async_op=True)
        heard = self.num_signs()
        while not work.is_completed():
            time.sleep(LOOK_UP_EVERY_S)
            if (told := self.num_signs()) != heard:
                still_here()
            heard = told
        work.wait()
        return every

    def num_signs(self) -> int:
        """All that ranks have told so far."""
        told: int = self._signs_store.add(_SIGNS, 0)
        return told

    @cached_property
    def _signs_store(self) -> Store:
        """A connection of its own: on the other one, a rank that waits for a key holds up every other call."""
        if not self.address:
            return self._store
        host, _, port = self.address.rpartition(":")
        return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=self.timeout_s))

    def signs(self) -> Signs:
        """For the thread of a rank that others wait for."""
        return _ToldSigns(self._signs_store)


class _ToldSigns(Signs):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._told_at = 0.0

    def sign(self) -> None:
        """Also from threads that a library works on, for every few kilobytes; nobody hears more than looks up."""
        super().sign()
        if time.monotonic() - self._told_at >= LOOK_UP_EVERY_S:
            self._tell()

    def end(self) -> None:
        super().end()
        self._tell()

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        self._store.add(_SIGNS, 1)


@cache
def _collect_at_exit() -> None:
    """A group ends with its last name, and its threads with it; those that outlive Python abort the process."""
    atexit.register(gc.collect)


def hang_up() -> None:
    """Closes this process's connections, so that nobody waits for it: after a failure, for good."""
    if not torch_distributed.is_initialized():
        return
    if torch_distributed.get_backend() == "nccl":
        torch_distributed.distributed_c10d._abort_process_group()
    else:
        torch_distributed.destroy_process_group()
