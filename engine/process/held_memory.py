"""The memory that a process and its descendants hold, by the kernel's counters, which cost nothing to read.

Pages of files are left out: the kernel takes them back before it kills anybody.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.process.thread_times import PROC, UNREADABLE

CHANGE: Final = 8
"""A change by less than an eighth, or by less than `SMALL`, is none."""
SMALL: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    own: int = 0
    """Bytes of the tree's processes alone."""
    shared: int = 0
    """Bytes in shared memory, which other parts may have mapped too: of the process that maps the most."""

    def is_near(self, before: "HeldMemory") -> bool:
        changes = abs(self.own - before.own), abs(self.shared - before.shared)
        limits = max(SMALL, before.own // CHANGE), max(SMALL, before.shared // CHANGE)
        return all(change < limit for change, limit in zip(changes, limits, strict=True))


def held_by_tree(root: int | None = None) -> HeldMemory:
    """`root`: this process by default."""
    own, shared, tree = 0, 0, [root or os.getpid()]
    for pid in tree:
        with suppress(*UNREADABLE):
            status = sizes_in(Path(f"{PROC}/{pid}/status"))
            own, shared = own + status.get("RssAnon", 0), max(shared, status.get("RssShmem", 0))
        with suppress(OSError):
            for children in Path(f"{PROC}/{pid}/task").glob("*/children"):
                with suppress(OSError):
                    tree += map(int, children.read_text().split())
    return HeldMemory(own=own, shared=shared)


def sizes_in(file: Path) -> dict[str, int]:
    """Of a file of the kernel's: lines such as `RssAnon:  12 kB`, in bytes. Raises `OSError`."""
    lines = [line.split() for line in file.read_text().splitlines()]
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[2:] == ["kB"]}
