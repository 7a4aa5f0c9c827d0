"""Placement of parts in a running job: hosts come and go, and parts of a lost host move to another, or wait.

    hosts seen ──▶ parts whose host is gone
    parts due ──▶ a host each, with room ──▶ a relay on every host of a replica ──▶ list of relays announced

Invariants:
- a part restarts on its own host while that exists: its reserved resources are there;
- no part starts without room: resources of started parts without a first report count as taken;
- a replica is started on a host only together with, or after, a relay there;
- exactly the relays that have a host are announced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.addresses import DATA, TRAINER, Address, relay_address, rollout_address
from engine.pipeline.messages.to_relay import RelaysPlaced
from engine.policy.placement import JobNeeds, Places, place_ranks, place_replicas
from engine.policy.rooms import HostView, Rooms

# A message may be lost, and a restarted part knows only the first relay.
ANNOUNCE_AGAIN_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    part: Address
    hosts: tuple[str, ...]
    relay: int | None = None
    """A replica's relay."""


class Anywhere:
    """No placement: the body decides where parts start."""

    def update_hosts(self, hosts: Sequence[HostView]) -> list[Address]:
        """Takes the current hosts. Returns the parts whose host is gone."""
        return []

    def receive(self, part: Address) -> None:
        pass

    def leave(self, part: Address) -> None:
        """The part has left: its resources are free for others."""

    def has_place(self, part: Address) -> bool:
        return True

    def starts(self, due: Sequence[Address], known: Sequence[Address]) -> list[Start]:
        """The due parts that have a place, and the relays that these need. `known`: all parts ever started."""
        return [Start(part=part, hosts=()) for part in due]

    def announce(self, now: float) -> list[Effect]:
        return []


class Placing(Anywhere):
    def __init__(self, needs: JobNeeds, places: Places, hosts: Sequence[HostView]) -> None:
        self._needs, self._hosts = needs, tuple(hosts)
        self._at: dict[Address, tuple[str, ...]] = first_places(places)
        self._reserved = {part for part in self._at if not self._is_elastic(part)}
        """Parts that keep the resources of their place even while they are away."""
        self._unheard: dict[Address, tuple[str, ...]] = {}
        """Parts started on free resources, without a report yet."""
        self._announced: tuple[int, ...] = ()
        self._announced_at = float("-inf")

    @property
    def relays(self) -> tuple[int, ...]:
        return tuple(sorted(part.number for part in self._at if part.kind == "relay"))

    def has_place(self, part: Address) -> bool:
        return part in self._at

    def update_hosts(self, hosts: Sequence[HostView]) -> list[Address]:
        self._hosts, alive = tuple(hosts), {host.id for host in hosts}
        gone = [part for part, at in self._at.items() if not alive.issuperset(at)]
        for part in gone:
            self._unheard.pop(part, None)
            self._reserved.discard(part)
            if part != TRAINER:  # some of its ranks may still have their hosts
                del self._at[part]
        return gone

    def receive(self, part: Address) -> None:
        self._unheard.pop(part, None)

    def leave(self, part: Address) -> None:
        self._unheard.pop(part, None)
        if part not in self._reserved:
            self._at.pop(part, None)

    def starts(self, due: Sequence[Address], known: Sequence[Address]) -> list[Start]:
        rooms = self._rooms()
        relays = [part for part in due if part.kind == "relay"]
        homeless = [part for part in relays if part not in self._at]
        starts = [Start(part=part, hosts=self._at[part]) for part in relays if part in self._at]
        for part in sorted(set(due).difference(relays), key=_start_order):
            hosts = self._hosts_for(part, rooms)
            if not hosts:
                continue
            relay = None
            if part.kind == "rollout":
                relay, is_new = self._relay_on(hosts[0], homeless, known)
                if is_new:
                    rooms.take(hosts[0], self._needs.relay)
                    starts.append(Start(part=relay_address(relay), hosts=hosts))
            starts.append(Start(part=part, hosts=hosts, relay=relay))
        return starts

    def announce(self, now: float) -> list[Effect]:
        relays = self.relays
        if relays == self._announced and now - self._announced_at < ANNOUNCE_AGAIN_AFTER_S:
            return []
        self._announced, self._announced_at = relays, now
        message = RelaysPlaced(relays=relays)
        return [Send(to=part, message=message) for part in (DATA, TRAINER, *map(relay_address, relays))]

    # ── one part ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _hosts_for(self, part: Address, rooms: Rooms) -> tuple[str, ...]:
        """Empty: the part must wait."""
        before, alive = self._at.get(part, ()), set(rooms.ids)
        if before and alive.issuperset(before):
            return before
        match part.kind:
            case "trainer":
                kept = alive.intersection(before)
                again = place_ranks(
                    rooms,
                    self._needs,
                    count=sum(host not in alive for host in before),
                    per_host=before.count(before[0]) if self._needs.even_ranks else None,
                    but=kept if self._needs.even_ranks else (),
                )
                hosts = tuple(host if host in alive else again.pop() for host in before) if again else ()
            case "rollout":
                relays = [at[0] for relay, at in self._at.items() if relay.kind == "relay"]
                hosts = tuple(place_replicas(rooms, self._needs, 1, relays=relays))
            case _:
                host = rooms.most_cpus(rooms.ids) if rooms.ids else None
                hosts = (host,) if host and rooms.num_fitting(host, self._needs.service) else ()
        if hosts:
            self._at[part] = self._unheard[part] = hosts
            if part.kind not in ("trainer", "rollout"):
                rooms.take(hosts[0], self._needs.service)
        return hosts

    def _relay_on(self, host: str, homeless: list[Address], known: Sequence[Address]) -> tuple[int, bool]:
        """The relay's number, and whether it must be started."""
        for part, at in self._at.items():
            if part.kind == "relay" and at == (host,):
                return part.number, False
        numbers = {part.number for part in (*known, *self._at) if part.kind == "relay"}
        relay = homeless.pop(0) if homeless else relay_address(max(numbers, default=-1) + 1)
        self._at[relay] = self._unheard[relay] = (host,)
        return relay.number, True

    def _rooms(self) -> Rooms:
        rooms = Rooms(self._hosts)
        for part, hosts in self._unheard.items():
            for host in hosts:
                rooms.take(host, self._needs.of(part.kind))
        return rooms

    def _is_elastic(self, part: Address) -> bool:
        return part.kind == "rollout" and part.number >= self._needs.fewest_replicas


def first_places(places: Places) -> dict[Address, tuple[str, ...]]:
    relays = {relay_address(relay): (host,) for relay, host in enumerate(places.relays)}
    replicas = {rollout_address(replica): (host,) for replica, host in enumerate(places.replicas)}
    return {TRAINER: places.ranks, DATA: (places.services,), **relays, **replicas}


def _start_order(part: Address) -> tuple[int, int]:
    """Sort key: trainer and data first, since no other part can work without them."""
    return ("trainer", "data", "rollout").index(part.kind), part.number
