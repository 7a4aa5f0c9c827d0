"""Imports DeepSpeed and limits its effects on the process's globals.

Invariants:
- every collective of DeepSpeed's clone of the process group also ends within the world's `timeout_s`;
- DeepSpeed compiles nothing, writes nothing to standard output, and its variables are in the environment only while a
  trainer is in the world;
- a missing program that DeepSpeed looks for is "not found", whatever folders PATH names.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from logging import getLogger
from pathlib import Path
from typing import Any, Final

import torch.distributed as torch_distributed

from engine.training.ranks.world import World

# DeepSpeed builds this kernel with a C++ compiler and ninja at the first process group. Only inference needs it.
_SHARED_MEMORY_KERNEL: Final = "deepspeed_shm_comm"

# DeepSpeed reads these variables whenever it compares ranks. Each rank is a process that sees one device, its first.
# Without LOCAL_SIZE it runs `numactl` to count a CPU's devices, at every exchange of stage 3's gradients.
_ONE_DEVICE: Final = {"LOCAL_RANK": "0", "LOCAL_SIZE": "1"}


@contextmanager
def surroundings() -> Iterator[None]:
    """Sets DeepSpeed's environment while a trainer is in a world; on exit, drops DeepSpeed's reference to the group."""
    with environment(_ONE_DEVICE | _read_searchable_path()):
        yield
    from deepspeed import comm
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK

    if comm.is_initialized():
        comm.destroy_process_group()  # torch's group, and DeepSpeed's reference to it
    FWD_MODULE_STACK.clear()  # otherwise keeps every model that stage 3 sharded, with its engine and groups


def bound_collectives(world: World) -> None:
    """Sets the timeout of DeepSpeed's clone of the group, to which torch gives its default of half an hour."""
    from deepspeed.utils.groups import _get_data_parallel_group

    torch_distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=world.timeout_s), _get_data_parallel_group())


def import_deepspeed(device: str) -> Any:
    kind = "cuda" if device.startswith("cuda") else "cpu"
    with environment({"DS_ACCELERATOR": kind} | _read_searchable_path()):
        # Without DS_ACCELERATOR DeepSpeed takes the machine's GPUs, even for a trainer on the CPU.
        import deepspeed
        import deepspeed.ops
        from deepspeed.accelerator import get_accelerator

        if get_accelerator().device_name() != kind:
            raise ValueError(f"device: {kind}, but DeepSpeed runs on {get_accelerator().device_name()} in this process")
        deepspeed.ops.__compatible_ops__[_SHARED_MEMORY_KERNEL] = False  # the first lookup would run programs
    log = getLogger("DeepSpeed")
    log.handlers.clear()  # DeepSpeed's handler writes to standard output
    log.propagate = True
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    return deepspeed


def _read_searchable_path() -> dict[str, str]:
    path = os.environ.get("PATH")
    return {} if path is None else {"PATH": searchable(path)}


def searchable(path: str) -> str:
    """Removes the folders of PATH that this user may not read: with them, looking up a missing program raises
    PermissionError, which DeepSpeed does not expect."""
    return os.pathsep.join(filter(_is_searchable, path.split(os.pathsep))) or os.defpath


def _is_searchable(folder: str) -> bool:
    try:
        Path(folder, "..").stat()  # requires permission to search the folder
    except PermissionError:
        return False
    except OSError:
        pass  # a missing folder does no harm
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
