"""Progress inside code that gives no signs of life: imports, a compiler, the start of vLLM.

    heartbeat ──every second──▶ OpaqueWork: is there a new call stack, child process or megabyte of storage?

Invariant: code that hangs has few states. A thread that waits in C has one call stack, a polling loop has some, so new
ones end within seconds; a loader or a compiler makes new ones as long as it works.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

STORAGE_UNIT: Final = 2**20
READ: Final = "read_bytes: "


class OpaqueWork:
    """Progress of one thread of this process."""

    def __init__(self, thread_id: int, *, storage: Callable[[], int] | None = None) -> None:
        self._thread_id = thread_id
        self._storage = storage or bytes_read_from_storage
        self._seen: set[object] = set()

    def has_moved(self) -> bool:
        """Whether there are new states since the last call. On the first call the present state is new."""
        present: set[object] = {("stack", self._stack()), ("storage", self._storage() // STORAGE_UNIT)}
        present |= {("process", each) for each in processes_below("self")}
        new = present - self._seen
        self._seen |= new
        return bool(new)

    def _stack(self) -> int:
        """The thread's call stack, by functions: with line numbers a polling loop would have many rare states."""
        frame = sys._current_frames().get(self._thread_id)
        functions: list[int] = []
        while frame is not None:
            functions.append(id(frame.f_code))
            frame = frame.f_back
        return hash(tuple(functions))


def bytes_read_from_storage() -> int:
    """Bytes that this process has read, pages of mapped libraries included; 0 if the kernel does not count."""
    with suppress(OSError):
        for line in Path("/proc/self/io").read_text().splitlines():
            if line.startswith(READ):
                return int(line.removeprefix(READ))
    return 0


def processes_below(process: str) -> Iterator[str]:
    """All descendants, such as a compiler's processes; empty if the kernel does not list them."""
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                yield child
                yield from processes_below(child)
