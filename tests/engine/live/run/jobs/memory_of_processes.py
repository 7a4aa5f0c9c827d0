"""The memory of a command and its descendants, each and in total, sampled while it runs."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOOK_EVERY_S = 0.5


@dataclass(slots=True)
class Memory:
    """Peaks in bytes. Shared memory counts in each process, and once in `together`. Pages of files count in each
    process and in `with_files`: the system may write them out and drop them at any time."""

    together: int = 0
    with_files: int = 0
    by_process: dict[str, int] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        each = sorted(self.by_process.items(), key=lambda item: -item[1])
        whole = [("together", self.together), ("together, pages of files too", self.with_files)]
        return [f"{name:<32} {num_bytes / 1e9:6.2f} GB" for name, num_bytes in (*whole, *each)]


def available_bytes() -> int:
    """The memory that this machine has available."""
    return _bytes_of("/proc/meminfo")["MemAvailable"]


def run_watched(command: Sequence[str], *, log: Path, environment: dict[str, str]) -> tuple[int, Memory]:
    """Runs the command in a session of its own; returns its exit status and memory."""
    memory = Memory()
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        ) as process,
    ):
        while process.returncode is None:
            _look(process.pid, memory)
            try:
                process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                continue
    return process.returncode, memory


def _look(root: int, memory: Memory) -> None:
    together = with_files = 0
    for pid in _descendants(root):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            name = command.split("/")[-1].split(".")[0][:32] or "?"  # Ray appends the actor's current method
            status, shares = _bytes_of(f"/proc/{pid}/status"), _bytes_of(f"/proc/{pid}/smaps_rollup")
        except (OSError, ValueError):  # the process has ended
            continue
        memory.by_process[name] = max(memory.by_process.get(name, 0), status.get("VmHWM", 0))
        together += shares.get("Pss_Anon", 0) + shares.get("Pss_Shmem", 0)
        with_files += shares.get("Pss", 0)
    memory.together = max(memory.together, together)
    memory.with_files = max(memory.with_files, with_files)


def _bytes_of(file: str) -> dict[str, int]:
    """Parses lines like `Name:  12 kB` into bytes."""
    lines = (line.split() for line in Path(file).read_text().splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[2:] == ["kB"]}


def _descendants(root: int) -> Iterator[int]:
    """Descendants by parent and by session: an orphan keeps its session."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = (int(fields[1]), int(fields[3]))
    pids = {root}
    while True:
        more = {pid for pid, (parent, session) in parents.items() if parent in pids or session == root} - pids
        if not more:
            break
        pids |= more
    yield from sorted(pids - {os.getpid()})
