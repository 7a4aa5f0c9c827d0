"""Limits of a sandboxed run, and everything that may come of it.

Invariant: whatever the code inside does, its run ends as exactly one of these. Its limits are its own time's
(`own_time.py`): a busy host makes it end later, and never as something else, but for `Starved`, which is no verdict.
"""

from dataclasses import dataclass
from typing import Literal


class SandboxUnavailable(ValueError):
    """This machine cannot confine untrusted code, so it does not run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    wall_s: float = 10.0
    """Of the whole tree, computing or asleep; what it waits for a core does not count."""
    cpu_s: int = 10
    """Of each process by the kernel, of the whole tree when it is looked at. Both are of the reference's seconds."""
    memory_bytes: int = 512 << 20
    """Of the whole tree where a control group counts it; and of each process, with room for libraries."""
    disk_bytes: int = 64 << 20
    num_files: int = 10_000
    """In the private file system: each costs the kernel a kilobyte that no other limit sees."""
    num_processes: int = 32
    """Threads included. Without a control group: threads only, of one process."""
    num_open_files: int = 64
    output_bytes: int = 64 << 10
    """The bytes kept of standard output and of standard error, each."""


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
    """The host had no core for it: no verdict, and nobody's fault but the host's."""

    output: Output = Output()

    def __str__(self) -> str:
        return "waited too long for a core of this host, which is too busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    limit_bytes: int
    output: Output

    def __str__(self) -> str:
        return f"used more than {self.limit_bytes >> 20} MiB of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """The end by a signal (its own or the kernel's), or by us for a flood."""

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
