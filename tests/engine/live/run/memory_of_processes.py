"""The memory of a command and all that it starts, process by process and together, looked at while it runs."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOOK_EVERY_S = 0.5


@dataclass(slots=True)
class Memory:
    """Bytes at their highest. What several processes share counts in each one's own, and once together."""

    together: int = 0
    by_process: dict[str, int] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        each = sorted(self.by_process.items(), key=lambda item: -item[1])
        return [f"{'together':<32} {self.together / 1e9:6.2f} GB", *(f"{n:<32} {b / 1e9:6.2f} GB" for n, b in each)]


def run_watched(command: Sequence[str], *, log: Path, environment: dict[str, str]) -> tuple[int, Memory]:
    """Its exit status, and its memory. It becomes the head of a session of its own."""
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
    together = 0
    for pid in _descendants(root):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            name = words.split("/")[-1].split(".")[0][:32] or "?"  # Ray adds the method that an actor is in
            status = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
            )
            shares = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        own = int(status.get("VmHWM", "0").split()[0]) * 1024
        memory.by_process[name] = max(memory.by_process.get(name, 0), own)
        together += next((int(line.split()[1]) * 1024 for line in shares if line.startswith("Pss:")), 0)
    memory.together = max(memory.together, together)


def _descendants(root: int) -> Iterator[int]:
    """By parent, and by session: an orphan keeps its session."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = (int(fields[1]), int(fields[3]))
    found = {root}
    while True:
        more = {pid for pid, (parent, session) in parents.items() if parent in found or session == root} - found
        if not more:
            break
        found |= more
    yield from sorted(found - {os.getpid()})
