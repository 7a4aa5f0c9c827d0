"""Hosts that run out of memory: whether that killed a part, and whose memory it was.

    the part is alive   ──reports its host's counter of OOM kills, and its own memory, as they grow──▶ its watcher
    the part is dead    ──the watcher reads the host's counter again──▶ a higher count: the kernel killed the part
                        ──the last reports of all parts there──▶ what the job held of that host

A killed process cannot report its cause, and the kernel may kill another process than the one that grew.

Invariants:
- the comparison spans a few seconds: from the part's last report of the counter to its death;
- a host that does not answer explains nothing, and a death there is reported like any other: the host may be gone, or
  out of memory for Ray.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engine.fit.need import gigabytes
from engine.process.held_memory import HeldMemory, held_by_tree
from engine.training.checkpoint.host_memory import total_bytes

log = logging.getLogger(__name__)

_VMSTAT: Final = Path("/proc/vmstat")
# A host that just ran out of memory has to start a process for the answer.
ANSWERED_WITHIN_S: Final = 15.0
MEASURED_EVERY_S: Final = 2.0  # reading a tree of processes takes milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """A part's memory and its host's, read by the part."""

    node: str
    """Ray's node id."""
    num_kills: int
    """OOM kills that the host's kernel has counted."""
    held: HeldMemory
    host_bytes: int


class MemoryReporter:
    """A part's reports: the first, each rise of its host's counter, each change of its own memory by an eighth."""

    def __init__(self, vmstat: Path = _VMSTAT, clock: Callable[[], float] = time.monotonic) -> None:
        self._vmstat, self._clock = vmstat, clock
        self._reported: MemoryReport | None = None
        self._held, self._measured_at = HeldMemory(), float("-inf")

    def news(self) -> MemoryReport | None:
        """None: nothing worth a report has changed."""
        now, before = self._clock(), self._reported
        if now - self._measured_at >= MEASURED_EVERY_S:
            self._held, self._measured_at = held_by_tree(), now
        num_kills = _count(self._vmstat)
        if before is not None and num_kills == before.num_kills and self._held.is_near(before.held):
            return None
        self._reported = MemoryReport(node=_own_node(), num_kills=num_kills, held=self._held, host_bytes=total_bytes())
        return self._reported


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """What the parts of this job held of a host by their last reports."""

    by_part: Mapping[str, HeldMemory]
    host_bytes: int

    @property
    def num_bytes(self) -> int:
        """Parts share most of their shared memory: the weights."""
        shared = max((held.shared for held in self.by_part.values()), default=0)
        return shared + sum(held.own for held in self.by_part.values())

    @property
    def explains_a_full_host(self) -> bool:
        return 2 * self.num_bytes >= self.host_bytes

    @property
    def largest(self) -> str:
        return max(self.by_part, key=lambda part: self.by_part[part].own)


def describe_kill(killer: str, use: HostUse | None, part: str) -> str:
    """`part`: the one that was killed, as its host was out of memory."""
    killed = f"{killer} killed its process: its host was out of memory"
    if use is None:
        return killed
    held = f"{killed}; this job held {gigabytes(use.num_bytes)} of its {gigabytes(use.host_bytes)}"
    if not use.explains_a_full_host:
        return f"{held}, so something else took it"
    largest = gigabytes(use.by_part[use.largest].own)
    return held if use.largest == part else f"{held}, most of it {use.largest} ({largest})"


class KernelKills:
    """The last report of each part."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._reports: dict[str, MemoryReport] = {}

    def record(self, part: str, report: MemoryReport) -> None:
        self._reports[part] = report

    def use_of_host(self, part: str) -> HostUse | None:
        """By all parts on the host of this one. None: it has never reported."""
        own = self._reports.get(part)
        if own is None:
            return None
        by_part = {name: each.held for name, each in self._reports.items() if each.node == own.node}
        return HostUse(by_part=by_part, host_bytes=own.host_bytes)

    def explain(self, part: str) -> bool:
        """Whether the kernel of a dead part's host has killed a process since the part's last report."""
        before = self._reports.pop(part, None)
        if before is None:
            return False
        num_kills = self._read(before.node)
        return num_kills is not None and num_kills > before.num_kills

    def _read(self, node: str) -> int | None:
        if node == _own_node():
            return _count(self._vmstat)
        there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        task: Any = ray.remote(_count)
        answer = task.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(self._vmstat)
        try:
            num_kills: int = ray.get(answer, timeout=ANSWERED_WITHIN_S)
        except (RayError, GetTimeoutError) as error:
            log.warning("cannot read the OOM kills of host=%s error=%s", node, type(error).__name__)
            ray.cancel(answer)
            return None
        return num_kills


def _own_node() -> str:
    """This host's node id; empty outside of Ray."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _count(vmstat: Path) -> int:
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
