"""OOM kills by the kernel, on every host of a run: a killed process cannot report its cause, but its host counts kills.

    the part is alive   ──reports its host's counter whenever it grows──▶ the watcher of the part
    the part is dead    ──the watcher reads the host's counter again──▶ a higher count: the kernel killed the part

Invariants:
- the comparison spans a few seconds: from the part's last report of the counter to its death;
- a host that does not answer explains nothing, and a death there is reported like any other: the host may be gone, or
  out of memory for Ray.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

log = logging.getLogger(__name__)

_VMSTAT: Final = Path("/proc/vmstat")
# A host that just ran out of memory has to start a process for the answer.
ANSWERED_WITHIN_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKills:
    """A host's counter, read by a process there."""

    node: str
    """Ray's node id."""
    num_kills: int

    @classmethod
    def here(cls, vmstat: Path = _VMSTAT) -> "HostKills":
        return cls(node=_own_node(), num_kills=_count(vmstat))


class KillReporter:
    """A part's reports of its host's counter."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._reported: HostKills | None = None

    def news(self) -> HostKills | None:
        """The counter; None if it has not changed since the last call."""
        kills = HostKills.here(self._vmstat)
        if kills == self._reported:
            return None
        self._reported = kills
        return kills


class KernelKills:
    """The last report of each part's host."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._reports: dict[str, HostKills] = {}

    def record(self, part: str, report: HostKills) -> None:
        self._reports[part] = report

    def explain(self, part: str) -> bool:
        """Whether the kernel of a dead part's host has killed a process since the part's last report."""
        before = self._reports.pop(part, None)
        if before is None:
            return False
        now = self._read(before.node)
        return now is not None and now.num_kills > before.num_kills

    def _read(self, node: str) -> HostKills | None:
        if node == _own_node():
            return HostKills.here(self._vmstat)
        there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        task: Any = ray.remote(_read_here)
        answer = task.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(self._vmstat)
        try:
            kills: HostKills = ray.get(answer, timeout=ANSWERED_WITHIN_S)
        except (RayError, GetTimeoutError) as error:
            log.warning("cannot read the OOM kills of host=%s error=%s", node, type(error).__name__)
            ray.cancel(answer)
            return None
        return kills


def _own_node() -> str:
    """This host's node id; empty outside of Ray."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _read_here(vmstat: Path) -> HostKills:
    return HostKills.here(vmstat)


def _count(vmstat: Path) -> int:
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
