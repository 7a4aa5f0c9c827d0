"""Sandboxes with a share of one core, as on a busy host. The engine itself keeps all cores.

A child inherits its thread's control group and allowed cores: hence the spawner's thread is moved.

    where root may make a cpu group (version 1)     a quota of the share, which takes no core from other processes
    elsewhere                                       1 / share - 1 spinning processes on the sandboxes' only core
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from engine.environments.sandbox.starting import _SPAWNER

_CPU: Final = Path("/sys/fs/cgroup/cpu")
_PERIOD_US: Final = 50_000
_SPINS: Final = "while True: pass"


@contextmanager
def starved(share: float) -> Iterator[None]:
    with ExitStack() as until_over:
        if share < 1:
            until_over.enter_context(_quota(share) if os.access(_CPU / "cgroup.procs", os.W_OK) else _crowd(share))
        yield


@contextmanager
def _quota(share: float) -> Iterator[None]:
    before = _group_of_this_process()
    group = before / f"laminar-test-{os.getpid()}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(int(_PERIOD_US * share)))

    def move(to: Path) -> None:
        (to / "tasks").write_text(str(threading.get_native_id()))

    _SPAWNER.submit(move, group).result()
    try:
        yield
    finally:
        _SPAWNER.submit(move, before).result()
        while group.exists():
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(OSError):  # the process has ended; the others are warm workers of a judge
                    (before / "cgroup.procs").write_text(pid)
            with suppress(OSError):  # the kernel is still removing a process
                group.rmdir()


def _group_of_this_process() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return _CPU / path.lstrip("/")
    return _CPU


@contextmanager
def _crowd(share: float) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    core = {min(before)}
    spins = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {core})\n{_SPINS}"]
    crowd = [subprocess.Popen(spins) for _ in range(round(1 / share) - 1)]
    _SPAWNER.submit(os.sched_setaffinity, 0, core).result()
    try:
        yield
    finally:
        _SPAWNER.submit(os.sched_setaffinity, 0, before).result()
        for each in crowd:
            each.kill()
            each.wait()
