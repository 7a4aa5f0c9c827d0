"""Starts sandboxes: the programs, the limits of each process, our files, and a spawner thread that outlives callers.

Invariant: where the kernel allows it, the started processes have no address randomization, and the filter
(`seccomp.py`) relies on their fixed addresses.
"""

import ctypes
import math
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

from engine.environments.sandbox.host_speed import host_scale
from engine.environments.sandbox.outcome import Limits, SandboxUnavailable

ROOM_FOR_LIBRARIES: Final = 256 << 20
"""Address space beyond the memory limit: code and thread stacks that are mapped and mostly never used."""
NUM_ALONE: Final = 3
"""Processes without a control group: bubblewrap, the warm process, and its copy that serves a call."""
_ADDR_NO_RANDOMIZE: Final = 0x0040000

# The kernel kills bubblewrap (--die-with-parent) when the *thread* that started it ends; callers' threads may end.
_SPAWNER: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-spawner")


@cache
def addresses_are_fixed() -> bool:
    """Disables randomization in the spawner, whose children inherit that. A container's filter may forbid the call."""
    before: int = _SPAWNER.submit(lambda: ctypes.CDLL(None).personality(_ADDR_NO_RANDOMIZE)).result()
    return before != -1


def program_at(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SandboxUnavailable(f"the sandbox needs {name} (package util-linux; sh: dash), which is not on the PATH")
    return path


def spawn(
    command: Sequence[str], *, stdin: int, stdout: int, stderr: int, inherited: Sequence[int]
) -> subprocess.Popen[bytes]:
    return _SPAWNER.submit(
        lambda: subprocess.Popen(
            command, env={}, cwd="/", stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=inherited,
            start_new_session=True,
        )
    ).result()  # fmt: skip


def resource_limits(limits: Limits, num_processes: int) -> list[tuple[str, int, int]]:
    room = limits.memory_bytes + ROOM_FOR_LIBRARIES
    wanted = {
        "RLIMIT_AS": room,
        "RLIMIT_FSIZE": limits.disk_bytes,
        "RLIMIT_NOFILE": limits.num_open_files,
        "RLIMIT_NPROC": num_processes,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": limits.num_open_files,
    }
    cpu_s = math.ceil(limits.cpu_s * host_scale())
    # One second between SIGXCPU, which names the reason, and SIGKILL.
    return [("RLIMIT_CPU", cpu_s, cpu_s + 1), *((name, most, most) for name, most in wanted.items())]


@cache
def own_files() -> dict[str, str]:
    inside = Path(__file__).parent / "inside"
    return {name: (inside / name).read_text() for name in ("bootstrap.py", "frames.py", "serve.py")}
