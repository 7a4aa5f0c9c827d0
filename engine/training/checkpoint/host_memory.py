"""The memory of this host that a process may still take, before the machine or Ray ends somebody for it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Ray ends workers from 95 % of a host's memory on, whoever took it.
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
    """For each of so many processes that are alike: its part of what the host or the container has, whichever is
    narrower, less what it may yet grow back to."""
    spare = min((available - int(_KEPT_FREE * total) for total, available in _measured()), default=0)
    return max(spare // num_sharing - _grows_back(), 0)


def total_bytes() -> int:
    """Of the host or the container, whichever is narrower."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((total for total, _available in _measured()), default=installed)


def _measured() -> Iterator[tuple[int, int]]:
    """(all, available)"""
    host = _fields(_PROC / "meminfo")
    if "MemAvailable" in host:
        yield host["MemTotal"], host["MemAvailable"]
    for limit_file, used_file, droppable in _CGROUPS:
        try:
            limit, used = int(limit_file.read_text()), int(used_file.read_text())
            dropped = _plain_fields(limit_file.parent / "memory.stat").get(droppable, 0)
        except (OSError, ValueError):  # no such cgroup, or "max": no limit
            continue
        if limit < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            yield limit, limit - used + dropped


def _grows_back() -> int:
    """A step has taken its peak before, and will again."""
    own = _fields(_PROC / "self" / "status")
    return max(own.get("VmHWM", 0) - own.get("VmRSS", 0), 0)


def _fields(file: Path) -> dict[str, int]:
    """`Name:  12 kB`, in bytes."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[2:] == ["kB"]}


def _plain_fields(file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
