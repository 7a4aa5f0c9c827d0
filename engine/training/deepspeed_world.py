"""This process's place among the trainer's ranks, and DeepSpeed itself, kept out of everybody else's globals.

Invariants:
- a process is in one world at a time; its trainers share it, and the last that leaves takes the process group down. A
  group that somebody else started is never used: entering then is a ValueError;
- every collective, of torch's group and of DeepSpeed's clone of it, ends within `timeout_s`: with the peers' data or
  with an exception;
- DeepSpeed compiles nothing, writes nothing to standard output, and its variables are in the environment only while a
  trainer is in the world;
- a program that DeepSpeed looks for and that is not there is "not found", whatever folders PATH names.
"""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from logging import getLogger
from pathlib import Path
from typing import Any, Final, Self

import torch
import torch.distributed as torch_distributed
from torch import Tensor
from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

# A rank may wait this long for the others: longer than loading a checkpoint or one share of a large step takes, since
# all start a call together; short enough for a frozen host to be a failed attempt and not a lost night.
COLLECTIVE_TIMEOUT_S: Final = 600.0

# DeepSpeed builds this one with a C++ compiler and ninja at the first process group. It only serves inference.
_SHARED_MEMORY_KERNEL: Final = "deepspeed_shm_comm"

# DeepSpeed asks for them whenever it compares ranks. Each is a process with one device, which it sees as its first.
# Without the size it runs `numactl` to count a CPU's devices, at every exchange of stage 3's gradients.
_ONE_DEVICE: Final = {"LOCAL_RANK": "0", "LOCAL_SIZE": "1"}


class World:
    """The ranks of one trainer: `ALONE`, or one process that opens a rendezvous and others that join it."""

    def __init__(self, *, rank: int, num_ranks: int, store: Store, address: str, timeout_s: float) -> None:
        self.index, self.count, self.address = rank, num_ranks, address
        self.timeout_s = timeout_s
        self._store = store
        self._num_members = 0
        self._num_groups = 0
        self._in_environment = ExitStack()

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

    def enter(self, device: str) -> None:
        """One more trainer of this world; the first one meets the other ranks here."""
        if not self._num_members:
            if torch_distributed.is_initialized():
                raise ValueError("trainer.backend: a process group that is not this trainer's runs in this process")
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
            sys.excepthook = report  # torch wraps it once more for every group
            self._num_groups += 1
            self._in_environment.enter_context(environment(_ONE_DEVICE | _searchable_path()))
        self._num_members += 1

    def bound_collectives(self) -> None:
        """DeepSpeed works on a clone of the group, which torch gives half an hour whatever the first was given."""
        from deepspeed.utils.groups import _get_data_parallel_group

        torch_distributed.distributed_c10d._set_pg_timeout(
            timedelta(seconds=self.timeout_s), _get_data_parallel_group()
        )

    def leave(self) -> None:
        self._num_members -= 1
        if not self._num_members:
            self._in_environment.close()
            from deepspeed import comm

            if comm.is_initialized():
                comm.destroy_process_group()  # torch's group, and what DeepSpeed remembers of it
            else:
                torch_distributed.destroy_process_group()

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
        """From rank 0 into everybody's."""
        torch_distributed.broadcast(tensor, 0)
        return tensor


ALONE: Final = World(rank=0, num_ranks=1, store=HashStore(), address="", timeout_s=COLLECTIVE_TIMEOUT_S)


def hang_up() -> None:
    """Closes this process's connections, so that nobody waits for it: after a failure, for good."""
    if not torch_distributed.is_initialized():
        return
    if torch_distributed.get_backend() == "nccl":
        torch_distributed.distributed_c10d._abort_process_group()
    else:
        torch_distributed.destroy_process_group()


def import_deepspeed(device: str) -> Any:
    kind = "cuda" if device.startswith("cuda") else "cpu"
    with environment({"DS_ACCELERATOR": kind} | _searchable_path()):
        # Without its variable a machine's GPUs are taken, whether ours or not.
        import deepspeed
        import deepspeed.ops
        from deepspeed.accelerator import get_accelerator

        if get_accelerator().device_name() != kind:
            raise ValueError(f"device: {kind}, but DeepSpeed runs on {get_accelerator().device_name()} in this process")
        deepspeed.ops.__compatible_ops__[_SHARED_MEMORY_KERNEL] = False  # the first look runs programs
    log = getLogger("DeepSpeed")
    log.handlers.clear()  # its own writes to standard output
    log.propagate = True
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    return deepspeed


def _searchable_path() -> dict[str, str]:
    path = os.environ.get("PATH")
    return {} if path is None else {"PATH": searchable(path)}


def searchable(path: str) -> str:
    """Without the folders that this user may not look into: because of them, a program that is nowhere would be a
    PermissionError, which DeepSpeed does not expect."""
    return os.pathsep.join(filter(_may_be_searched, path.split(os.pathsep))) or os.defpath


def _may_be_searched(folder: str) -> bool:
    try:
        Path(folder, "..").stat()  # found by looking into the folder
    except PermissionError:
        return False
    except OSError:
        pass  # no folder: nothing is found there
    return True


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
