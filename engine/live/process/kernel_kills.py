"""Kills by the kernel for want of memory, on every host of a run: a process that was killed says nothing of it, its
host's own counter does.

    a part, while it lives   ──its host's counter, whenever it has grown──▶ heard by whoever watches the part
    the part is dead         ──its host is asked once more──▶ the counter is higher: one of those kills was it

Invariants:
- what is compared are a few seconds: the counter as the part last told it, and as it is after its death;
- a host that does not answer explains nothing, and a death there is told like any other: it may be gone itself, or have
  had no memory left for Ray.
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
# A host that has just run out of memory starts a process for the answer.
ANSWERED_WITHIN_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKills:
    """A host's counter, as somebody there read it."""

    node: str
    """Ray's name of it."""
    num_kills: int

    @classmethod
    def here(cls, vmstat: Path = _VMSTAT) -> "HostKills":
        return cls(node=_own_node(), num_kills=_count(vmstat))


class KillTeller:
    """What a part tells of its host."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._told: HostKills | None = None

    def news(self) -> HostKills | None:
        """None: it is what was told before."""
        found = HostKills.here(self._vmstat)
        if found == self._told:
            return None
        self._told = found
        return found


class KernelKills:
    """What was heard from hosts."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._heard: dict[str, HostKills] = {}

    def hear(self, part: str, told: HostKills) -> None:
        self._heard[part] = told

    def explain(self, part: str) -> bool:
        """Its death: the kernel of its host has killed a process since it was last heard."""
        before = self._heard.pop(part, None)
        if before is None:
            return False
        now = self._now(before.node)
        return now is not None and now.num_kills > before.num_kills

    def _now(self, node: str) -> HostKills | None:
        if node == _own_node():
            return HostKills.here(self._vmstat)
        there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        asked: Any = ray.remote(_on_this_host)
        answer = asked.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(self._vmstat)
        try:
            found: HostKills = ray.get(answer, timeout=ANSWERED_WITHIN_S)
        except (RayError, GetTimeoutError) as error:
            log.warning("host=%s does not say whether its kernel killed: %s", node, type(error).__name__)
            ray.cancel(answer)
            return None
        return found


def _own_node() -> str:
    """Outside of Ray, nothing."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _on_this_host(vmstat: Path) -> HostKills:
    return HostKills.here(vmstat)


def _count(vmstat: Path) -> int:
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
