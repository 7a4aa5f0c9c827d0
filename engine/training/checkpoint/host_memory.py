"""The host memory that a process may still take before the machine or Ray kills a process."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine.process.held_memory import sizes_in

# Ray kills workers once 95 % of a host's memory is in use, by any process.
_KEPT_FREE: Final = 0.05

_PROC: Final = Path("/proc")
_CGROUPS: Final = (
    # (limit, used, the field of `memory.stat` that can be dropped at any time)
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        "total_inactive_file",
    ),
)


def spare_bytes(*, num_sharing: int) -> int:
    """The share of one of `num_sharing` similar processes in the memory available to the host or the container,
    whichever is less, minus what this process may still grow back to."""
    spare = min((available - int(_KEPT_FREE * total) for total, available in _measure()), default=0)
    return max(spare // num_sharing - _measure_regrowth(), 0)


def total_bytes() -> int:
    """The memory of the host or the container, whichever is less."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((total for total, _available in _measure()), default=installed)


def _measure() -> Iterator[tuple[int, int]]:
    """Yields (total, available)."""
    host = _read_fields(_PROC / "meminfo")
    if "MemAvailable" in host:
        yield host["MemTotal"], host["MemAvailable"]
    for limit_file, used_file, droppable in _CGROUPS:
        try:
            limit, used = int(limit_file.read_text()), int(used_file.read_text())
            dropped = _read_plain_fields(limit_file.parent / "memory.stat").get(droppable, 0)
        except (OSError, ValueError):  # no such cgroup, or "max": no limit
            continue
        if limit < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            yield limit, limit - used + dropped


def _measure_regrowth() -> int:
    """The process's peak less its current size: the next step will reach its peak again."""
    own = _read_fields(_PROC / "self" / "status")
    return max(own.get("VmHWM", 0) - own.get("VmRSS", 0), 0)


def _read_fields(file: Path) -> dict[str, int]:
    try:
        return sizes_in(file)
    except OSError:
        return {}


def _read_plain_fields(file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
