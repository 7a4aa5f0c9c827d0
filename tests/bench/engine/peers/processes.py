"""CPU seconds of this process and of all that it started, by part of the engine.

Invariant: a process that has ended is not counted, so that a difference covers only processes that ran throughout.
"""

from typing import Final

import psutil

_PARTS: Final = {
    "RolloutActor": "replica",
    "TrainerActor": "trainer",
    "DataActor": "data",
    "EnvironmentActor": "environment",
    "RelayActor": "relay",
}
_DRIVER: Final = "driver"
_RAY: Final = "ray itself"


def cpu_s_by_part() -> dict[str, float]:
    me = psutil.Process()
    found: dict[str, float] = {}
    for process in (me, *me.children(recursive=True)):
        try:
            times, name = process.cpu_times(), _DRIVER if process == me else _part_of(process)
        except psutil.NoSuchProcess:
            continue
        found[name] = found.get(name, 0.0) + times.user + times.system
    return found


def _part_of(process: psutil.Process) -> str:
    """Ray names a worker's process after its actor's class, and the method that runs."""
    title = (process.cmdline() or [""])[0]
    return _PARTS.get(title.removeprefix("ray::").partition(".")[0], _RAY)
