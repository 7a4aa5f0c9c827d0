"""Limits of a sandboxed run, and everything that may come of it.

Invariant: whatever the code inside does, its run ends as exactly one of these, within the deadline and `GRACE_S`.
"""

from dataclasses import dataclass
from typing import Final, Literal

GRACE_S: Final = 2.0
"""The seconds that killing a process tree and reading its last output may take beyond the deadline."""


class SandboxUnavailable(ValueError):
    """This machine cannot confine untrusted code, so it does not run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    wall_s: float = 10.0
    cpu_s: int = 10
    """Of each process; the wall clock bounds them all."""
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
    wall_s: float

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


Outcome = Finished | TimedOut | OutOfMemory | Killed | Refused
