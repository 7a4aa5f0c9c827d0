"""Hosts and their free resources, from which processes take while they are placed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

# Ray counts resources to four decimals; sums of floats are not that exact.
PRECISION: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The resources of one process."""

    cpus: float
    gpus: float = 0.0

    def __str__(self) -> str:
        return f"{self.gpus:g} GPU and {self.cpus:g} CPU" if self.gpus else f"{self.cpus:g} CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    id: str
    name: str
    cpus: float
    gpus: float = 0.0
    free_cpus: float
    free_gpus: float = 0.0
    has_sandbox: bool = True  # as the host reports it

    def __str__(self) -> str:
        gpus = f"{self.free_gpus:g} of {self.gpus:g} GPUs and " if self.gpus else ""
        return f"{self.name} has {gpus}{self.free_cpus:g} of {self.cpus:g} CPUs free"


@dataclass(slots=True)
class Rooms:
    """Free resources of each host, updated while processes are placed."""

    hosts: Sequence[HostView]
    _cpus: dict[str, float] = field(init=False)
    _gpus: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self._cpus = {host.id: host.free_cpus for host in self.hosts}
        self._gpus = {host.id: host.free_gpus for host in self.hosts}

    @property
    def ids(self) -> list[str]:
        return list(self._cpus)

    def num_fitting(self, host: str, need: Need, *, shared: Need | None = None) -> int:
        """How often `need` fits on the host. `shared`: resources taken once, along with the first."""
        cpus = self._cpus[host] - (shared.cpus if shared else 0.0)
        fitting = [_count_fitting(cpus, need.cpus), _count_fitting(self._gpus[host], need.gpus)]
        return max(0, min(each for each in fitting if each is not None))

    def take(self, host: str, need: Need, count: int = 1) -> None:
        self._cpus[host] = round(self._cpus[host] - count * need.cpus, PRECISION)
        self._gpus[host] = round(self._gpus[host] - count * need.gpus, PRECISION)

    def most_cpus(self, among: Iterable[str]) -> str:
        return max(among, key=lambda host: self._cpus[host])


def _count_fitting(free: float, each: float) -> int | None:
    """None: any number of times."""
    return int(round(free / each, PRECISION)) if each else None


def emptied(hosts: Sequence[HostView]) -> list[HostView]:
    return [replace(host, free_cpus=host.cpus, free_gpus=host.gpus) for host in hosts]
