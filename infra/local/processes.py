"""Processes of one home: starting them, finding every last one, ending them.

A process belongs to a home when it carries the home's marker in its environment, or writes to one of the home's logs,
or has a file of the home's Ray folder open, or works in its Postgres folder. One sign alone would not do: Postgres and
Ray overwrite their environment with a title, and Ray's workers write to logs of their own.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from infra.local.home import HOME_MARKER, SERVICE_MARKER, Home

RUN_MARKER = "OF_LAMINAR_TEST_RUN"
"""Of test runs; a path, below which a run within a run adds a part. Sites that a test starts inherit it, since it is
named neither after us nor after Ray."""


def belongings(home: Home, service: str | None = None) -> list[psutil.Process]:
    """Every live process of the home (of one of its services), this one excepted."""
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _belongs(process, home, service) and process.status() != psutil.STATUS_ZOMBIE
    ]


def _belongs(process: psutil.Process, home: Home, service: str | None) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        environment = process.environ()
        if environment.get(HOME_MARKER) == str(home.folder):
            return service is None or environment.get(SERVICE_MARKER) == service
    with contextlib.suppress(psutil.Error, OSError):
        return _has_a_file_of(process.pid, home, service)
    return False


def processes_of_run(run: str) -> list[psutil.Process]:
    """Every live process that a test run has started, or something that it started, this one excepted."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _is_of_run(process, run)]


def _is_of_run(process: psutil.Process, run: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        marker = process.environ().get(RUN_MARKER, "")
        return marker == run or marker.startswith(f"{run}/")
    return False


def _has_a_file_of(pid: int, home: Home, service: str | None) -> bool:
    links = Path(f"/proc/{pid}/fd")
    for stream in ("1", "2"):
        target = _target(links / stream)
        if target.parent == home.logs and (service is None or target.name == f"{service}.log"):
            return True
    if service in (None, "postgres") and _target(Path(f"/proc/{pid}/cwd")) == home.folder / "postgres":
        return True
    if service not in (None, "ray"):
        return False
    return any(_target(link).is_relative_to(home.ray_folder) for link in links.iterdir())


def _target(link: Path) -> Path:
    try:
        return Path(link.readlink())
    except OSError:
        return Path("/")


def end_belongings(home: Home, service: str | None = None, *, grace_s: float = 3.0) -> int:
    """Ask, wait, then kill, until nothing is left. Returns how many there were."""
    found = belongings(home, service)
    end(found, grace_s=grace_s)
    # What was forked while we looked shows in a second look; a third finds nothing.
    for _ in range(5):
        rest = belongings(home, service)
        if not rest:
            break
        end(rest, grace_s=0)
    return len(found)


def end(processes: Iterable[psutil.Process], *, first: signal.Signals = signal.SIGTERM, grace_s: float) -> None:
    alive = list(processes)
    if grace_s > 0:
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.send_signal(first)
        _, alive = psutil.wait_procs(alive, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


def is_alive(pid: int, started_at: float) -> bool:
    """The very process: a number may be given again, together with its start it is not."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started_at) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def wait_until_gone(pid: int, started_at: float, *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_alive(pid, started_at):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
