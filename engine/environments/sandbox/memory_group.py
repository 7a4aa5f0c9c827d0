"""A control group for each sandbox, where this process may make one: in it the kernel counts the memory of the process
tree (pages, page tables, pipes, sockets, the files in /tmp) and refuses memory or kills processes at the limit.

    version 1   …/memory/OURS/laminar-sandbox-PID-X      below the group of this process
    version 2   …/OURS/…, or next to OURS                where the memory controller is delegated

An ordinary user can make groups where they are delegated (`systemd-run --user --scope -p Delegate=yes`), a container
where its /sys/fs/cgroup is writable. Without a group a sandbox is a single process (`seccomp.py`).

Invariant: a process joins the group before it becomes the sandbox, so none of its memory is counted elsewhere.
"""

import os
import re
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_NAME: Final = "laminar-sandbox"
_PROC: Final = Path("/proc/self")
JOINS: Final = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
"""For a shell: joins the group, then executes the command."""

_left: set[Path] = set()  # groups of ended sandboxes whose processes the kernel has not removed yet


class Parent(NamedTuple):
    folder: Path
    is_v2: bool


class MemoryGroup:
    def __init__(self, parent: Parent, *, limit_bytes: int) -> None:
        """Raises `OSError`."""
        self._is_v2 = parent.is_v2
        self.folder = parent.folder / f"{_NAME}-{os.getpid()}-{secrets.token_hex(4)}"
        self.folder.mkdir()
        if self._is_v2:
            limits = {"memory.max": limit_bytes, "memory.oom.group": 1, "memory.swap.max": 0}
        else:
            limits = {"memory.limit_in_bytes": limit_bytes, "memory.memsw.limit_in_bytes": limit_bytes}
        for name, value in limits.items():
            with suppress(FileNotFoundError):  # a kernel without swap accounting, or older than the setting
                (self.folder / name).write_text(str(value))

    def alarm(self) -> int | None:
        """A descriptor that becomes readable when the limit is hit. None: the kernel itself then kills the group."""
        if self._is_v2:
            return None
        alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        watched = os.open(self.folder / "memory.oom_control", os.O_RDONLY)
        try:
            (self.folder / "cgroup.event_control").write_text(f"{alarm} {watched}")
        finally:
            os.close(watched)
        return alarm

    def pids(self) -> list[int]:
        """The group's processes."""
        with suppress(OSError):
            return [int(line) for line in (self.folder / "cgroup.procs").read_text().split()]
        return []

    def was_exceeded(self) -> bool:
        text = (self.folder / ("memory.events" if self._is_v2 else "memory.oom_control")).read_text()
        return re.search(r"^oom_kill [1-9]", text, re.MULTILINE) is not None

    def remove(self) -> None:
        _left.add(self.folder)
        for folder in list(_left):
            with suppress(OSError):
                folder.rmdir()
                _left.discard(folder)


@cache
def parent_of_groups() -> Parent | None:
    """The group in which this process can make groups that count memory; None: there is none."""
    for parent in _candidates():
        if not os.access(parent.folder, os.W_OK):
            continue
        try:
            MemoryGroup(parent, limit_bytes=1 << 30).remove()
        except OSError:
            continue
        _remove_groups_of_dead_engines(parent.folder)
        return parent
    return None


def _candidates() -> list[Parent]:
    groups = [line.split(":", 2) for line in (_PROC / "cgroup").read_text().splitlines()]
    parents = []
    for root, point, kind, options in _mounts():
        if kind == "cgroup" and "memory" in options:
            ours = next((path for _, names, path in groups if "memory" in names.split(",")), "/")
            parents.append(Parent(_below(root, point, ours), is_v2=False))
        elif kind == "cgroup2":
            ours = next((path for number, _, path in groups if number == "0"), "/")
            folder = _below(root, point, ours)
            parents += [Parent(each, is_v2=True) for each in (folder, folder.parent) if _delegates_memory(each, folder)]
    return parents


def _mounts() -> list[tuple[str, Path, str, list[str]]]:
    """Root, mount point, type and options of each mounted file system."""
    mounts = []
    for line in (_PROC / "mountinfo").read_text().splitlines():
        before, after = line.split(" - ")
        kind, _, options = after.split(" ", 2)
        mounts.append((before.split()[3], Path(before.split()[4]), kind, options.split(",")))
    return mounts


def _below(root: str, point: Path, path: str) -> Path:
    """Inside a container the mounted tree may begin below the top."""
    inside = path.removeprefix(root) if root != "/" else path
    folder = point / inside.lstrip("/")
    return folder if folder.is_dir() else point


def _delegates_memory(folder: Path, ours: Path) -> bool:
    """Tries to delegate the controller in our own group: version 2 allows that only if the group has no process."""
    control = folder / "cgroup.subtree_control"
    with suppress(OSError):
        if folder == ours and "memory" not in control.read_text().split():
            control.write_text("+memory")
        return "memory" in control.read_text().split()
    return False


def _remove_groups_of_dead_engines(folder: Path) -> None:
    for group in folder.glob(f"{_NAME}-*-*"):
        if not Path("/proc", group.name.split("-")[2]).exists():
            with suppress(OSError):
                group.rmdir()
