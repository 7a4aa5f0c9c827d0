"""The hosts of a run that simulates placement: a host's processes are lost with it, and the manager sees the others.

Invariants:
- a part's initial resources stay reserved for it while its host exists; all others are free once their part has ended;
- no host is ever overcommitted: the oracle checks at every start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from engine.pipeline.effects import StartPart
from engine.pipeline.manager.placing import Placing, first_places
from engine.pipeline.messages.addresses import Address, relay_address, rollout_address
from engine.pipeline.messages.to_manager import HostsObserved
from engine.policy.placement import JobNeeds, Places, plan_places
from engine.policy.rooms import HostView, Need
from engine.sim.oracle.pipeline import demand

LOOK_EVERY_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class Hosts:
    needs: JobNeeds
    cluster: Sequence[HostView]
    """The hosts with their total resources."""
    num_replicas: int
    places: Places = field(init=False)
    at: dict[Address, tuple[str, ...]] = field(init=False)
    relay_of: dict[Address, int] = field(init=False)
    _reserved: dict[Address, tuple[str, ...]] = field(init=False)
    _alive: dict[str, HostView] = field(init=False)

    def __post_init__(self) -> None:
        self._alive = {host.id: host for host in self.cluster}
        self.places = plan_places(self.cluster, self.needs, num_replicas=self.num_replicas)
        self.at = first_places(self.places)
        self._reserved = {
            part: at
            for part, at in self.at.items()
            if part.kind != "rollout" or part.number < self.needs.fewest_replicas
        }
        numbers = range(len(self.places.replicas))
        self.relay_of = {rollout_address(number): self.places.relay_of(number) for number in numbers}

    @property
    def waiting(self) -> list[Address]:
        """Replicas that have no host yet."""
        return [rollout_address(number) for number in range(len(self.places.replicas), self.num_replicas)]

    def placing(self) -> Placing:
        return Placing(self.needs, self.places, self.cluster)

    def seen(self) -> HostsObserved:
        return HostsObserved(hosts=tuple(self._free(host) for host in self._alive.values()))

    def lose(self, name: str) -> list[Address]:
        """Removes a host and returns the parts that were on it."""
        del self._alive[name]
        return [part for part, at in self.at.items() if name in at]

    def has(self, names: Sequence[str]) -> bool:
        return self._alive.keys() >= set(names)

    def add(self, name: str) -> None:
        template = self.cluster[0]
        self._alive[name] = replace(template, id=name, name=name)

    def on_start(self, start: StartPart) -> None:
        if not start.hosts:  # an environment worker, started by the driver
            return
        self.at[start.part] = start.hosts
        if start.relay is not None:
            self.relay_of[start.part] = start.relay
            relay = self.at.get(relay_address(start.relay))
            demand(relay == start.hosts, f"{start}, whose relay is on {relay}")
        for host in self._alive.values():
            free = self._free(host)
            demand(min(free.free_gpus, free.free_cpus) >= 0, f"{start}, but {host.name} has no room for it")

    def on_end(self, part: Address) -> None:
        self.at.pop(part, None)

    def _free(self, host: HostView) -> HostView:
        taken = [need for part in {*self.at, *self._reserved} for need in self._takes(part, host.id)]
        return replace(
            host,
            free_cpus=round(host.cpus - sum(need.cpus for need in taken), 4),
            free_gpus=round(host.gpus - sum(need.gpus for need in taken), 4),
        )

    def _takes(self, part: Address, host: str) -> list[Need]:
        kept, at = self._reserved.get(part, ()), self.at.get(part, ())
        need = {"trainer": self.needs.rank, "rollout": self.needs.replica, "relay": self.needs.relay}
        return [need.get(part.kind, self.needs.service)] * max(kept.count(host), at.count(host))
