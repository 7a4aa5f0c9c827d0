"""The ranks of a trainer with several devices, as seen by one process.

Invariants:
- a process is in one world at a time; its trainers share the world, and the last one to leave destroys the process
  group. A group started by other code is never used: entering then is a ValueError;
- every collective of the group ends within `timeout_s`: with the peers' data or with an exception;
- `assemble` and `exchange` have their own connections, and may run on one thread in parallel with training. They take
  as long as the slowest rank's disk; a rank that dies ends them. A rank that waits in `exchange` reports progress only
  when another rank has reported some.
"""

import atexit
import gc
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from functools import cache, cached_property
from typing import Any, Final, Self

import torch
import torch.distributed as torch_distributed
from torch import Tensor
from torch.distributed import HashStore, PrefixStore, ProcessGroup, Store, TCPStore, Work  # type: ignore[attr-defined]

from engine.process.progress import LoopProgress, report_progress

# How long a rank waits for the others: longer than one share of a large step takes, since all ranks
# start a call together; short enough for a frozen host to fail the attempt early.
COLLECTIVE_TIMEOUT_S: Final = 600.0

# In effect no timeout: rank 0's process owns the others and is watched, so they end with it.
AS_LONG_AS_IT_TAKES: Final = timedelta(days=7)

LOOK_UP_EVERY_S: Final = 0.02
_PROGRESS: Final = "progress"


class World:
    """The ranks of one trainer: a single one, or one process that opens a rendezvous and others that join it."""

    def __init__(self, *, rank: int, num_ranks: int, store: Store, address: str, timeout_s: float) -> None:
        self.index, self.count, self.address = rank, num_ranks, address
        self.host = socket.gethostname()
        self.timeout_s = timeout_s
        self._store = store
        self._num_members = 0
        self._num_groups = 0
        self._side_group: Any = None
        self._meanwhile = ExitStack()

    @classmethod
    def alone(cls) -> Self:
        return cls(rank=0, num_ranks=1, store=HashStore(), address="", timeout_s=COLLECTIVE_TIMEOUT_S)

    @classmethod
    def open(cls, *, num_ranks: int, host: str, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> Self:
        """Rank 0, which the others join at `address`."""
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
        return cls(rank=0, num_ranks=num_ranks, store=store, address=f"{host}:{store.port}", timeout_s=timeout_s)

    @classmethod
    def join(cls, address: str, *, rank: int, num_ranks: int, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> Self:
        host, _, port = address.rpartition(":")
        store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout_s))
        return cls(rank=rank, num_ranks=num_ranks, store=store, address=address, timeout_s=timeout_s)

    def enter(self, device: str, meanwhile: AbstractContextManager[None] | None = None) -> None:
        """Adds a trainer to this world; the first one connects to the other ranks. `meanwhile`: a context
        that the first trainer opens and the last one to leave closes."""
        if not self._num_members:
            if torch_distributed.is_initialized():
                raise ValueError("trainer.backend: another process group already runs in this process")
            _collect_at_exit()
            report = sys.excepthook
            torch_distributed.init_process_group(
                "nccl" if device.startswith("cuda") else "gloo",
                # A store keeps the keys of an ended group, so each group has its own prefix.
                store=PrefixStore(f"group-{self._num_groups}", self._store),
                rank=self.index,
                world_size=self.count,
                timeout=timedelta(seconds=self.timeout_s),
                device_id=torch.device("cuda", torch.cuda.current_device()) if device.startswith("cuda") else None,
            )
            if self.count > 1:
                self._side_group = torch_distributed.new_group(backend="gloo", timeout=AS_LONG_AS_IT_TAKES)
            sys.excepthook = report  # torch wraps the hook again for every group
            self._num_groups += 1
            if meanwhile is not None:
                self._meanwhile.enter_context(meanwhile)
        self._num_members += 1

    def leave(self) -> None:
        self._num_members -= 1
        if not self._num_members:
            self._meanwhile.close()
            self._side_group = None
            if torch_distributed.is_initialized():
                torch_distributed.destroy_process_group()

    def abandon(self, device: str) -> None:
        """For a rank that cannot make a trainer: enters and leaves, so that the others fail at once."""
        if not self._num_groups:
            self.enter(device)
            self.leave()

    # Ranks -------------------------------------------------------------------------------------------------------

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, with the same bits on each."""
        total = tensor.clone()
        torch_distributed.all_reduce(total)
        return total

    def max(self, tensor: Tensor) -> Tensor:
        largest = tensor.clone()
        torch_distributed.all_reduce(largest, torch_distributed.ReduceOp.MAX)
        return largest

    def send(self, tensor: Tensor) -> Tensor:
        """Broadcasts rank 0's tensor into every rank's."""
        if self.count > 1:
            torch_distributed.broadcast(tensor, 0)
        return tensor

    def make_group(self, groups: Iterable[Sequence[int]]) -> ProcessGroup:
        """The one of these disjoint groups of ranks that has this rank. Collective: every rank makes every group."""
        own = None
        for ranks in groups:
            group = torch_distributed.new_group(list(ranks), timeout=timedelta(seconds=self.timeout_s))
            if self.index in ranks:
                own = group
        assert isinstance(own, ProcessGroup)
        return own

    def ranks_by_host(self) -> list[list[int]]:
        """The ranks of each host; the host of the lowest rank comes first. Collective."""
        hosts = self.exchange(self.host.encode())
        return [[rank for rank, each in enumerate(hosts) if each == host] for host in dict.fromkeys(hosts)]

    def count_on_this_host(self) -> int:
        """The number of ranks on this host. Collective."""
        return next(len(ranks) for ranks in self.ranks_by_host() if self.index in ranks)

    # In parallel with training -----------------------------------------------------------------------------------

    def assemble(self, own: Tensor, spans: Sequence[range], *, on: int) -> Tensor | None:
        """Assembles the ranks' spans of a parameter on rank `on`: flat, in host memory. None on the others."""
        if self.count == 1:
            return own
        if self.index != on:
            if len(own):
                torch_distributed.send(own.contiguous().view(torch.uint8), on, group=self._side_group)
            return None
        whole = torch.empty(sum(map(len, spans)), dtype=own.dtype)
        for rank, span in enumerate(spans):
            part = whole[span.start : span.stop]
            if rank == on:
                part.copy_(own)
            elif len(span):
                torch_distributed.recv(part.view(torch.uint8), rank, group=self._side_group)
        return whole

    def exchange(self, own: bytes) -> list[bytes]:
        """All ranks' messages, on every rank."""
        if self.count == 1:
            return [own]
        sizes = [int(size.item()) for size in self._gather_all(torch.tensor([len(own)]))]
        padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8) if own else padded[:0]
        every = self._gather_all(padded)
        return [each[:size].numpy().tobytes() for each, size in zip(every, sizes, strict=True)]

    def _gather_all(self, tensor: Tensor) -> list[Tensor]:
        every = [torch.empty_like(tensor) for _ in range(self.count)]
        work: Work = torch_distributed.all_gather(every, tensor, group=self._side_group, async_op=True)
        num_before = self.num_reports()
        while not work.is_completed():
            time.sleep(LOOK_UP_EVERY_S)
            if (num_reports := self.num_reports()) != num_before:
                report_progress()
            num_before = num_reports
        work.wait()
        return every

    def num_reports(self) -> int:
        """How many units of work all ranks have reported so far."""
        num_reports: int = self._progress_store.add(_PROGRESS, 0)
        return num_reports

    @cached_property
    def _progress_store(self) -> Store:
        """A separate connection: on the other one, a rank that waits for a key blocks every other call."""
        if not self.address:
            return self._store
        host, _, port = self.address.rpartition(":")
        return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=self.timeout_s))

    def progress(self) -> LoopProgress:
        """Progress that is reported to other ranks, for the thread that they wait for."""
        return _SharedProgress(self._progress_store)


class _SharedProgress(LoopProgress):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._reported_at = 0.0

    def advance(self) -> None:
        """Reports at most once per LOOK_UP_EVERY_S: libraries call this from their threads for every few kilobytes."""
        super().advance()
        if time.monotonic() - self._reported_at >= LOOK_UP_EVERY_S:
            self._report()

    def end(self) -> None:
        super().end()
        self._report()

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        self._store.add(_PROGRESS, 1)


@cache
def _collect_at_exit() -> None:
    """A group's threads end when the group is collected; threads that outlive Python abort the process."""
    atexit.register(gc.collect)


def hang_up() -> None:
    """Closes this process's connections after a failure, so that no rank waits for it. Final."""
    if not torch_distributed.is_initialized():
        return
    if torch_distributed.get_backend() == "nccl":
        torch_distributed.distributed_c10d._abort_process_group()
    else:
        torch_distributed.destroy_process_group()
