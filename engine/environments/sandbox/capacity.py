"""Capacity of this host for sandboxed processes of one kind.

    cores  ──▶ computing: processes that start without a wait. Half of the cores: rollouts and trainer need the others
    memory ──▶ most: processes in all, with those that start because calls wait for sleeping ones

Processes start when calls need them, so their number follows the open samples up to this capacity. Calls beyond it
queue; their own time does not run meanwhile.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

from engine.spec.environments.workers import MEMORY_SHARE

CORES_SHARE: Final = 1 / 2
LEAST_COMPUTING: Final = 2
BYTES_OF_ONE: Final = 512 << 20
"""The memory limit of most sandboxed processes."""
LEAST, MOST = 8, 512
_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    computing: int
    most: int

    @property
    def programs(self) -> int:
        """Programs that run once, each in a sandbox of its own: some of them sleep, others only start."""
        return 2 * self.computing

    @classmethod
    def of(cls, *, num_cores: float, memory_bytes: int, num_workers: int = 1) -> Self:
        """`num_workers`: the job's environment workers, which may all be on this host and share its memory."""
        by_memory = int(memory_bytes * MEMORY_SHARE / BYTES_OF_ONE / num_workers)
        most = min(max(by_memory, LEAST), MOST)
        computing = max(LEAST_COMPUTING, int(num_cores * CORES_SHARE))
        return cls(computing=min(computing, most), most=most)


_num_workers = 1


def share_host(num_workers: int) -> None:
    """Call it before this process makes its environment."""
    global _num_workers
    _num_workers = num_workers
    host_capacity.cache_clear()


@cache
def host_capacity() -> Capacity:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Capacity.of(num_cores=_num_cores(), memory_bytes=memory_bytes, num_workers=_num_workers)


def _num_cores() -> float:
    """The cores that this process may use, by its affinity and its container's quota."""
    num = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return num if quota == "max" else min(num, int(quota) / int(period))
    except (OSError, ValueError):  # control groups of version 1, or none
        return num
