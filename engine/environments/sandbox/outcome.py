"""Limits and outcomes of a sandboxed run.

Invariant: whatever the code inside does, its run ends with exactly one of these outcomes. Time limits are of its own
time (`own_time.py`): on a busy host it ends later but with the same outcome, or as `Starved`, which is no verdict.
"""

from dataclasses import dataclass
from typing import Literal


class SandboxUnavailable(ValueError):
    """This machine cannot confine untrusted code, so the code does not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    wall_s: float = 10.0
    """For the process tree, computing or asleep; waits for a core do not count."""
    cpu_s: int = 10
    """For each process by the kernel, for the tree by our samples. Both limits are in seconds of the reference core."""
    memory_bytes: int = 512 << 20
    """For the tree where a control group counts its memory; also for each process, plus room for libraries."""
    disk_bytes: int = 64 << 20
    num_files: int = 10_000
    """In the private file system: each file takes a kilobyte of the kernel's memory that no other limit counts."""
    num_processes: int = 32
    """Threads included. Without a control group: threads only, of one process."""
    num_open_files: int = 64
    output_bytes: int = 64 << 10
    """Bytes kept of standard output, and of standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    stdout: str = ""
    stderr: str = ""
    stdout_truncated: bool = False
    stderr_truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    exit_code: int
    output: Output

    def __str__(self) -> str:
        return f"ended with exit code {self.exit_code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    clock: Literal["wall", "cpu"]
    limit_s: float
    output: Output

    def __str__(self) -> str:
        return f"took longer than {self.limit_s:g} s" + (" of processor time" if self.clock == "cpu" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Starved:
    """The host had no core for the code: no verdict, and the host's fault."""

    output: Output = Output()

    def __str__(self) -> str:
        return "waited too long for a core; this host is too busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    limit_bytes: int
    output: Output

    def __str__(self) -> str:
        return f"used more than {self.limit_bytes >> 20} MiB of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """Ended by a signal (its own or the kernel's), or by us for a flood of output."""

    reason: str
    output: Output

    def __str__(self) -> str:
        return f"was killed: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The untrusted code never began."""

    reason: str

    def __str__(self) -> str:
        return f"the sandbox did not start: {self.reason}"


Outcome = Finished | TimedOut | Starved | OutOfMemory | Killed | Refused
