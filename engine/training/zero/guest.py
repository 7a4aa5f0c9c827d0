"""DeepSpeed itself, kept out of everybody else's globals.

Invariants:
- every collective of DeepSpeed's clone of the process group ends within the world's `timeout_s`, too;
- DeepSpeed compiles nothing, writes nothing to standard output, and its variables are in the environment only while a
  trainer is in the world;
- a program that DeepSpeed looks for and that is not there is "not found", whatever folders PATH names.
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

# DeepSpeed builds this one with a C++ compiler and ninja at the first process group. It only serves inference.
_SHARED_MEMORY_KERNEL: Final = "deepspeed_shm_comm"

# DeepSpeed asks for them whenever it compares ranks. Each is a process with one device, which it sees as its first.
# Without the size it runs `numactl` to count a CPU's devices, at every exchange of stage 3's gradients.
_ONE_DEVICE: Final = {"LOCAL_RANK": "0", "LOCAL_SIZE": "1"}


# Of the trainers that are alone in their process.
ALONE: Final = World.alone()


@contextmanager
def surroundings() -> Iterator[None]:
    """The environment that DeepSpeed needs while a trainer is in a world; then it forgets the world's process group."""
    with environment(_ONE_DEVICE | _searchable_path()):
        yield
    from deepspeed import comm
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK

    if comm.is_initialized():
        comm.destroy_process_group()  # torch's group, and what DeepSpeed remembers of it
    FWD_MODULE_STACK.clear()  # where every model that stage 3 divided stays for good, its engine and groups with it


def bound_collectives(world: World) -> None:
    """DeepSpeed works on a clone of the group, which torch gives half an hour whatever the first was given."""
    from deepspeed.utils.groups import _get_data_parallel_group

    torch_distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=world.timeout_s), _get_data_parallel_group())


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
