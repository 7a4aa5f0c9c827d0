"""Moves: all work on some weights of one replica continues on another, with one owner at every instant.

    source runs ──▶ host reserves ──▶ data gives the lease to the host ──▶ source hands over ──▶ host runs
         ▲                  │                      (the only change of owner)
         └── no answer, no room, other weights: the move is dropped

Invariants:
- until the host has reserved room for all of it, the source owns and runs the work as before;
- from the new lease on the source only hands over; if the handover is lost, the host resumes from data's progress;
- a source is in one move only, and never a host; the host holds the weights that wrote the moved samples;
- a message from one replica touches only its own moves, however many others there are;
- with the manager dead no move begins, and pending moves end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.pipeline.data.accounts import Owner
from engine.pipeline.data.groups import GroupBook, OpenGroup
from engine.pipeline.data.known_replicas import KnownReplica, KnownReplicas
from engine.pipeline.data.partials import PartialPool
from engine.pipeline.records import Move, Reservation
from engine.policy.lineage import WeightsId

# A reservation takes one round trip.
RESERVE_WITHIN_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class PendingMove:
    source: Owner
    host: Owner
    weights: WeightsId
    reservations: tuple[Reservation, ...]
    since: float


class Mover:
    def __init__(
        self,
        *,
        books: Callable[[], Iterable[GroupBook]],
        replicas: KnownReplicas,
        new_lease: Callable[[], int],
        partials: PartialPool,
    ) -> None:
        self._books, self._replicas, self._new_lease, self._partials = books, replicas, new_lease, partials
        self._pending: dict[Owner, PendingMove] = {}
        """By source, oldest first."""
        self._hosted: dict[Owner, list[PendingMove]] = {}
        self.num_moved = 0

    def plan(self, moves: Sequence[Move], now: float) -> None:
        for move in moves:
            source = self._replicas.of((move.source, move.source_incarnation))
            host = self._replicas.of((move.host, move.host_incarnation))
            if source is not None and host is not None:
                self._begin(source, host, move.weights, self._running_on(source, move.weights), now)

    def plan_leave(self, leaving: KnownReplica, now: float) -> None:
        """Moves as many groups as fit to the replica with most room."""
        for weights in sorted(leaving.residents):
            hosts = [replica for replica in self._replicas if weights in replica.residents and not replica.is_leaving]
            if not hosts:
                continue
            host = max(hosts, key=lambda replica: replica.room)
            room, fitting = host.room, []
            for group in self._running_on(leaving, weights):
                if group.is_begun and len(group.missing) <= room:
                    fitting.append(group)
                    room -= len(group.missing)
            self._begin(leaving, host, weights, fitting, now)

    def promised(self, host: KnownReplica) -> int:
        """Room that this host was ordered to keep and has not confirmed."""
        return sum(kept.num_samples for kept in host.reservations if kept.lease not in host.reserved)

    def is_source(self, owner: Owner) -> bool:
        return owner in self._pending

    def _begin(
        self, source: KnownReplica, host: KnownReplica, weights: WeightsId, groups: list[OpenGroup], now: float
    ) -> None:
        is_source_free = source.owner not in self._pending and source.owner not in self._hosted
        is_free = is_source_free and not self.is_source(host.owner)
        num_samples = sum(len(group.missing) for group in groups)
        if not (groups and is_free and self._may_host(source, host, weights, num_samples)):
            return
        if not all(group.is_begun for group in groups):
            return  # some of it is still on its way to the source
        reservations = tuple(
            Reservation(key=group.key, lease=self._new_lease(), num_samples=len(group.missing), weights=weights)
            for group in groups
        )
        move = PendingMove(source=source.owner, host=host.owner, weights=weights, reservations=reservations, since=now)
        self._pending[move.source] = move
        self._hosted.setdefault(move.host, []).append(move)
        self._update_reservations(host.owner)
        host.take_room(num_samples)

    def _may_host(self, source: KnownReplica, host: KnownReplica, weights: WeightsId, num_samples: int) -> bool:
        is_another = source.owner != host.owner and not host.is_leaving
        return is_another and weights in source.residents & host.residents and num_samples <= host.room

    def _update_reservations(self, host: Owner) -> None:
        """Sets all reservations that this host must keep."""
        replica = self._replicas.of(host)
        if replica is not None:
            replica.reservations = tuple(
                reservation for move in self._hosted.get(host, ()) for reservation in move.reservations
            )
            replica.touch()

    # ── pending moves ─────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, replica: KnownReplica, now: float) -> None:
        """After a sync: commits moves that the replica has reserved, cancels those whose weights it no longer holds."""
        for move in list(self._hosted.get(replica.owner, ())):
            if move.weights in replica.residents and {kept.lease for kept in move.reservations} <= replica.reserved:
                self._commit(move, replica, now)
        for move in self._of(replica.owner):
            if move.weights not in replica.residents:
                self._cancel(move)

    def expire(self, now: float) -> None:
        while self._pending and now - (oldest := next(iter(self._pending.values()))).since > RESERVE_WITHIN_S:
            self._cancel(oldest)

    def lose(self, owner: Owner) -> None:
        for move in self._of(owner):
            self._cancel(move)

    def cancel_all(self) -> None:
        for move in list(self._pending.values()):
            self._cancel(move)

    def _of(self, owner: Owner) -> list[PendingMove]:
        """Moves with this source or host."""
        move = self._pending.get(owner)
        return [*self._hosted.get(owner, ()), *([] if move is None else [move])]

    def _cancel(self, move: PendingMove) -> None:
        del self._pending[move.source]
        hosted = self._hosted[move.host]
        hosted.remove(move)
        if not hosted:
            del self._hosted[move.host]
        self._update_reservations(move.host)

    def _commit(self, move: PendingMove, host: KnownReplica, now: float) -> None:
        self._cancel(move)
        leases = {kept.key: kept.lease for kept in move.reservations}
        moved = [group for group in self._owned_by(move.source) if group.key in leases]
        for book in self._books():
            for group in moved:
                if group.key in book:
                    book.assign(group, move.host, lease=leases[group.key], now=now)
                    group.source = move.source
                    if self._partials.keeps_version:
                        group.exact = move.weights
                    self._partials.keep_what_fits(group, move.weights)
                    host.tasks.append(group.task(is_handed_over=True))
                    host.touch()
                    host.is_empty = False
                    self.num_moved += len(group.missing)

    def _running_on(self, replica: KnownReplica, weights: WeightsId) -> list[OpenGroup]:
        owned = self._owned_by(replica.owner)
        return [group for group in owned if replica.weights_for(group.key, group.exact) == weights]

    def _owned_by(self, owner: Owner) -> list[OpenGroup]:
        return [group for book in self._books() for group in book.owned_by(owner)]
