"""Data's view of the replicas, from their last syncs, with the outgoing grant of each.

Invariants:
- only a replica's latest sync counts, and only its latest incarnation;
- grants since the last sync are subtracted from the replica's room, so it is never exceeded;
- a message from one replica reads no other replica's state.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from engine.pipeline.data.accounts import Owner
from engine.pipeline.effects import Send
from engine.pipeline.messages.addresses import rollout_address
from engine.pipeline.messages.to_data import ReplicaSynced
from engine.pipeline.messages.to_rollout import WorkGranted
from engine.pipeline.records import GroupKey, GroupTask, HandOver, HeldGroup, Reservation, SampleKey
from engine.policy.lineage import NO_WEIGHTS, WeightsId


@dataclass(slots=True, kw_only=True)
class KnownReplica:
    number: int
    incarnation: int
    serial: int = -1
    weights: WeightsId = NO_WEIGHTS
    """Weights that fresh work starts on."""
    residents: frozenset[WeightsId] = frozenset()
    """All weights that work may run on."""
    wants: int = 0
    """Fresh sequences that may still be granted, some of them for places that are about to become free."""
    room: int = 0
    """Sequences on its residents that the replica could still take over."""
    groups: dict[GroupKey, HeldGroup] = field(default_factory=dict)
    reserved: frozenset[int] = frozenset()
    """Leases that the replica keeps room for."""
    is_empty: bool = True
    """The replica holds nothing, and no grant is on its way."""
    is_leaving: bool = False
    ordered_weights: WeightsId | None = None
    """The last order to hold weights, as sent by data or confirmed by the replica."""
    missing: WeightsId | None = None
    place: int = 0
    """Grows with each new replica."""
    touched: dict[int, "KnownReplica"] = field(default_factory=dict, repr=False)
    """Replicas that have changed since their last check for a grant, by place."""
    # Content of the next grant:
    confirmed: list[SampleKey] = field(default_factory=list)
    tasks: list[GroupTask] = field(default_factory=list)
    revoked: list[HeldGroup] = field(default_factory=list)
    handovers: list[HandOver] = field(default_factory=list)
    reservations: tuple[Reservation, ...] = ()
    ordered_reservations: frozenset[int] = frozenset()
    """The last order to keep room for leases, as sent by data or confirmed by the replica."""
    is_released: bool = False

    @property
    def owner(self) -> Owner:
        return (self.number, self.incarnation)

    def receive(self, message: ReplicaSynced) -> bool:
        """True if the message is newer than the last sync."""
        self.touch()
        self.confirmed += [trajectory.key for trajectory in message.finished]
        if message.serial <= self.serial:
            return False
        self.serial, self.weights = message.serial, message.weights
        self.residents = frozenset({message.weights, *message.older})
        self.wants, self.room, self.is_leaving = message.wants, message.room, message.is_leaving
        self.groups = {held.key: held for held in message.groups}
        self.reserved = frozenset(held.lease for held in message.reserved)
        self.is_empty = not message.groups and not message.reserved
        self.ordered_weights, self.missing, self.ordered_reservations = (
            message.ordered_weights,
            message.missing,
            self.reserved,
        )
        return True

    @property
    def is_open(self) -> bool:
        """The replica may be granted work."""
        return self.room > 0 or self.wants > 0

    @property
    def in_use(self) -> frozenset[WeightsId]:
        """Weights with running sequences."""
        return frozenset(held.weights for held in self.groups.values() if not held.is_over)

    @property
    def has_promised(self) -> bool:
        """The replica keeps room for a move, or is ordered to."""
        return bool(self.reservations or self.reserved)

    def weights_for(self, key: GroupKey, exact: WeightsId | None) -> WeightsId:
        """The weights on which this group runs here, or would run."""
        held = self.groups.get(key)
        return held.weights if held is not None and not held.is_over else exact or self.weights

    def touch(self) -> None:
        self.touched[self.place] = self

    def take_room(self, num_samples: int) -> None:
        self.wants -= num_samples
        self.room -= num_samples
        self.is_empty = False
        self.touch()

    def grant(self, to_hold: WeightsId | None) -> Send | None:
        """The next grant for the replica; None if it would be empty."""
        awaited = frozenset(reservation.lease for reservation in self.reservations)
        has_content = self.tasks or self.confirmed or self.revoked or self.handovers or self.is_released
        if not has_content and to_hold == self.ordered_weights and awaited == self.ordered_reservations:
            return None
        grant = WorkGranted(
            incarnation=self.incarnation,
            taken=tuple(self.confirmed),
            tasks=tuple(self.tasks),
            to_hold=to_hold,
            revoked=tuple(self.revoked),
            reserved=self.reservations,
            handovers=tuple(self.handovers),
            is_released=self.is_released,
        )
        self.ordered_weights, self.ordered_reservations = to_hold, awaited
        self.confirmed, self.tasks, self.revoked, self.handovers, self.is_released = [], [], [], [], False
        return Send(to=rollout_address(self.number), message=grant)


class KnownReplicas:
    def __init__(self) -> None:
        self._replicas: dict[int, KnownReplica] = {}
        self._touched: dict[int, KnownReplica] = {}
        self._num_places = 0
        self._alike: object = None
        self.wanting = Wanting()

    def __iter__(self) -> Iterator[KnownReplica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def of(self, owner: Owner) -> KnownReplica | None:
        replica = self._replicas.get(owner[0])
        return replica if replica is not None and replica.incarnation == owner[1] else None

    def newest_of(self, number: int) -> KnownReplica | None:
        return self._replicas.get(number)

    def add(self, number: int, incarnation: int) -> KnownReplica:
        self._num_places += 1
        replica = KnownReplica(number=number, incarnation=incarnation, place=self._num_places, touched=self._touched)
        self._replicas[number] = replica
        replica.touch()
        return replica

    def note_changes(self) -> None:
        """Updates the index of wanting replicas for those that have changed."""
        for replica in self._touched.values():
            self.wanting.note(replica)

    def grants(self, to_hold: Callable[[KnownReplica], WeightsId | None], *, alike: object) -> list[Send]:
        """Grants for the replicas that have changed, since a message concerns one among hundreds. `alike`: key on which
        the weights to hold depend; None: they may have changed for any replica."""
        is_as_before = alike is not None and alike == self._alike
        self._alike = alike
        checked = [self._touched[place] for place in sorted(self._touched)] if is_as_before else list(self)
        self._touched.clear()
        grants = [replica.grant(to_hold(replica)) for replica in checked]
        return [grant for grant in grants if grant is not None]

    def remove(self, owner: Owner) -> None:
        replica = self.of(owner)
        if replica is not None:
            del self._replicas[owner[0]]
            self._touched.pop(replica.place, None)
            self.wanting.forget(replica)


class Wanting:
    """Replicas that want fresh work, by the weights that it would begin on: the replica that wants most comes first, on
    a tie the one known for longer.

    A heap for each weights. A stale entry is dropped when it comes to the top, or with all others once stale entries
    are most of a heap.
    """

    def __init__(self) -> None:
        self._heaps: dict[WeightsId, list[tuple[int, int]]] = {}
        """(negated wants, place)"""
        self._noted: dict[int, tuple[KnownReplica, WeightsId, int]] = {}
        """By place: replica, weights and wants of the newest entry."""

    def note(self, replica: KnownReplica) -> None:
        """Updates the replica's entry after its wants or weights have changed."""
        place, weights, wants = replica.place, replica.weights, replica.wants
        if self._is_true((-wants, place), weights):
            return
        self._noted[place] = (replica, weights, wants)
        if wants <= 0:
            return
        heap = self._heaps.setdefault(weights, [])
        heappush(heap, (-wants, place))
        if len(heap) > 2 * len(self._noted) + 16:
            self._heaps[weights] = sorted({entry for entry in heap if self._is_true(entry, weights)})

    def forget(self, replica: KnownReplica) -> None:
        self._noted.pop(replica.place, None)

    def take_first(self, *, but: Collection[WeightsId]) -> KnownReplica | None:
        """Removes and returns the first replica on other weights than `but`. The caller notes it again."""
        firsts = [(self._first(weights), weights) for weights in list(self._heaps) if weights not in but]
        first = min(((entry, weights) for entry, weights in firsts if entry is not None), default=None)
        if first is None:
            return None
        (_, place), weights = first
        heappop(self._heaps[weights])
        return self._noted.pop(place)[0]

    def _first(self, weights: WeightsId) -> tuple[int, int] | None:
        heap = self._heaps[weights]
        while heap and not self._is_true(heap[0], weights):
            heappop(heap)
        if not heap:
            del self._heaps[weights]
            return None
        return heap[0]

    def _is_true(self, entry: tuple[int, int], weights: WeightsId) -> bool:
        noted = self._noted.get(entry[1])
        return noted is not None and noted[1:] == (weights, -entry[0])
