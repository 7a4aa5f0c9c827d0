"""One thread that looks at every sandbox from outside and ends those that grow too large.

Limits of a single process (`RLIMIT_AS`) do not add up over a tree, and cgroups are not to be had for an ordinary user
or in most containers; so the sum is taken from /proc, ten times a second, for all sandboxes in one pass.

Invariants:
- a sandbox that is watched and exceeds its memory or its number of files is killed within about `EVERY_S`;
- the thread exists only while something is watched.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from engine.environments.sandbox.outcome import Limits

EVERY_S: Final = 0.1
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

Breach = Literal["memory", "files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    limits: Limits
    on_breach: Callable[[Breach], None]


class Watch:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._runs = False

    def add(self, pid: int, limits: Limits, on_breach: Callable[[Breach], None]) -> None:
        with self._lock:
            self._watched[pid] = _Watched(limits=limits, on_breach=on_breach)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._look, name="sandbox-watch", daemon=True).start()

    def remove(self, pid: int) -> None:
        with self._lock:
            self._watched.pop(pid, None)

    def _look(self) -> None:
        while True:
            time.sleep(EVERY_S)
            with self._lock:
                if not self._watched:
                    self._runs = False
                    return
                watched = dict(self._watched)
            for pid, breach in breaches({pid: entry.limits for pid, entry in watched.items()}):
                watched[pid].on_breach(breach)


def breaches(limits: dict[int, Limits]) -> Iterator[tuple[int, Breach]]:
    children: dict[int, list[int]] = {}
    resident: dict[int, int] = {}
    for pid, parent, pages in _processes():
        children.setdefault(parent, []).append(pid)
        resident[pid] = pages * _PAGE
    for root, allowed in limits.items():
        tree = _tree(root, children)
        # Resident pages that several share count for each of them; only where that is too much, look closer.
        seems_large = sum(resident.get(pid, 0) for pid in tree) > allowed.memory_bytes
        if seems_large and sum(_share_of_memory(pid, resident) for pid in tree) > allowed.memory_bytes:
            yield root, "memory"
        elif _num_files(tree[-1], allowed) > allowed.num_files:
            yield root, "files"


def _tree(root: int, children: dict[int, list[int]]) -> list[int]:
    tree = [root]
    for pid in tree:  # grows while it is read
        tree += children.get(pid, ())
    return tree


def _processes() -> Iterator[tuple[int, int, int]]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - hundreds of entries, ten times a second
        if not name.isdigit():
            continue
        try:
            fields = Path("/proc", name, "stat").read_bytes().rpartition(b") ")[2].split()
        except OSError:  # it ended meanwhile
            continue
        yield int(name), int(fields[1]), int(fields[21])


def _share_of_memory(pid: int, resident: dict[int, int]) -> int:
    """The resident memory, each page divided among the processes that map it."""
    try:
        lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    except OSError:  # it ended meanwhile, or may not be looked into
        return resident.get(pid, 0)
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _num_files(pid: int, limits: Limits) -> int:
    """Files in the sandbox's own /tmp, seen through any process in it; until that stands, /tmp is the machine's."""
    try:
        found = os.statvfs(f"/proc/{pid}/root/tmp")
    except OSError:  # it ended meanwhile, or is not set up yet
        return 0
    is_its_own = found.f_blocks * found.f_frsize <= limits.disk_bytes + _PAGE
    return found.f_files - found.f_ffree if is_its_own else 0


WATCH: Final = Watch()
