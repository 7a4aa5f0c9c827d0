"""Places of parts in a running job: hosts come and go, and what was on one that went goes to another, or waits.

    hosts seen ──▶ parts whose host is gone
    parts due ──▶ a host each, with room ──▶ a relay on every host of a replica ──▶ all told which relays there are

Invariants:
- a part begins again on its own host while that is there: what was reserved for it is there too;
- nothing is started where there is no room for it: what was started and has not been heard of yet counts as taken;
- a replica is started on a host only together with, or after, a relay there;
- the relays that are told of are those that have a host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.addresses import DATA, TRAINER, Address, relay_address, rollout_address
from engine.pipeline.messages.to_relay import RelaysPlaced
from engine.policy.placement import HostView, JobNeeds, Places, Rooms, place_ranks, place_replicas

# A message may be lost, and who begins again knows of the first relay only.
TELL_AGAIN_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    part: Address
    hosts: tuple[str, ...]
    relay: int | None = None
    """Of a replica."""


class Anywhere:
    """Where the body knows by itself where to start what."""

    def see(self, hosts: Sequence[HostView]) -> list[Address]:
        """The parts whose host is gone."""
        return []

    def hear(self, part: Address) -> None:
        pass

    def leave(self, part: Address) -> None:
        """It gave up what it had, for others to take."""

    def has_place(self, part: Address) -> bool:
        return True

    def starts(self, due: Sequence[Address], known: Sequence[Address]) -> list[Start]:
        """Those of the due parts that have a place, and the relays that these need. `known`: all parts there ever
        were."""
        return [Start(part=part, hosts=()) for part in due]

    def tell(self, now: float) -> list[Effect]:
        return []


class Placing(Anywhere):
    def __init__(self, needs: JobNeeds, places: Places, hosts: Sequence[HostView]) -> None:
        self._needs, self._hosts = needs, tuple(hosts)
        self._at: dict[Address, tuple[str, ...]] = first_places(places)
        self._reserved = {part for part in self._at if not self._is_elastic(part)}
        """They keep what their place has even while they are away."""
        self._unheard: dict[Address, tuple[str, ...]] = {}
        """Started on what was free."""
        self._told: tuple[int, ...] = ()
        self._told_at = float("-inf")

    @property
    def relays(self) -> tuple[int, ...]:
        return tuple(sorted(part.number for part in self._at if part.kind == "relay"))

    def has_place(self, part: Address) -> bool:
        return part in self._at

    def see(self, hosts: Sequence[HostView]) -> list[Address]:
        self._hosts, alive = tuple(hosts), {host.id for host in hosts}
        gone = [part for part, at in self._at.items() if not alive.issuperset(at)]
        for part in gone:
            self._unheard.pop(part, None)
            self._reserved.discard(part)
            if part != TRAINER:  # of which some ranks may still have their hosts
                del self._at[part]
        return gone

    def hear(self, part: Address) -> None:
        self._unheard.pop(part, None)

    def leave(self, part: Address) -> None:
        self._unheard.pop(part, None)
        if part not in self._reserved:
            self._at.pop(part, None)

    def starts(self, due: Sequence[Address], known: Sequence[Address]) -> list[Start]:
        rooms = self._rooms()
        relays = [part for part in due if part.kind == "relay"]
        homeless = [part for part in relays if part not in self._at]
        found = [Start(part=part, hosts=self._at[part]) for part in relays if part in self._at]
        for part in sorted(set(due).difference(relays), key=_turn):
            hosts = self._hosts_for(part, rooms)
            if not hosts:
                continue
            relay = None
            if part.kind == "rollout":
                relay, is_new = self._relay_on(hosts[0], homeless, known)
                if is_new:
                    rooms.take(hosts[0], self._needs.relay)
                    found.append(Start(part=relay_address(relay), hosts=hosts))
            found.append(Start(part=part, hosts=hosts, relay=relay))
        return found

    def tell(self, now: float) -> list[Effect]:
        relays = self.relays
        if relays == self._told and now - self._told_at < TELL_AGAIN_AFTER_S:
            return []
        self._told, self._told_at = relays, now
        message = RelaysPlaced(relays=relays)
        return [Send(to=part, message=message) for part in (DATA, TRAINER, *map(relay_address, relays))]

    # ── one part ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _hosts_for(self, part: Address, rooms: Rooms) -> tuple[str, ...]:
        """Empty: it must wait."""
        before, alive = self._at.get(part, ()), set(rooms.ids)
        if before and alive.issuperset(before):
            return before
        match part.kind:
            case "trainer":
                again = place_ranks(rooms, self._needs, count=sum(host not in alive for host in before))
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
        """Its number, and whether it must be started."""
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


def _turn(part: Address) -> tuple[int, int]:
    """Without trainer and data nothing goes on."""
    return ("trainer", "data", "rollout").index(part.kind), part.number
