"""The replicas as data knows them, from their last syncs, and the news that it is about to send each.

Invariants:
- of two syncs only the later one counts, and of two incarnations only the later one;
- grants since the last sync are taken off the replica's room, so no more is granted than it said it has;
- for a message of one replica no other is looked at.
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
    """Those that fresh work starts on."""
    residents: frozenset[WeightsId] = frozenset()
    """All that work may be for."""
    wants: int = 0
    """Fresh sequences that it may still be granted, some of them for places that are about to be free."""
    room: int = 0
    """Sequences of its residents that it could still take over."""
    groups: dict[GroupKey, HeldGroup] = field(default_factory=dict)
    reserved: frozenset[int] = frozenset()
    """Leases that it keeps room for."""
    is_empty: bool = True
    """It holds nothing, and nothing is on its way to it."""
    is_leaving: bool = False
    told_to_hold: WeightsId | None = None
    """The weights that it was last told to hold, or says that it was."""
    missing: WeightsId | None = None
    place: int = 0
    """Later ones have higher ones."""
    touched: dict[int, "KnownReplica"] = field(default_factory=dict, repr=False)
    """By their places, those of which something has changed since they were looked at for a grant."""
    # To be said with the next grant:
    confirmed: list[SampleKey] = field(default_factory=list)
    tasks: list[GroupTask] = field(default_factory=list)
    revoked: list[HeldGroup] = field(default_factory=list)
    handovers: list[HandOver] = field(default_factory=list)
    reservations: tuple[Reservation, ...] = ()
    told_to_reserve: frozenset[int] = frozenset()
    """Leases that it was last told to keep room for, or said that it does."""
    is_released: bool = False

    @property
    def owner(self) -> Owner:
        return (self.number, self.incarnation)

    def hear(self, message: ReplicaSynced) -> bool:
        """True if it is news."""
        self.touch()
        self.confirmed += [trajectory.key for trajectory in message.finished]
        if message.serial <= self.serial:
            return False
        self.serial, self.weights = message.serial, message.weights
        self.residents = frozenset({message.weights, *message.beside})
        self.wants, self.room, self.is_leaving = message.wants, message.room, message.is_leaving
        self.groups = {held.key: held for held in message.groups}
        self.reserved = frozenset(held.lease for held in message.reserved)
        self.is_empty = not message.groups and not message.reserved
        self.told_to_hold, self.missing, self.told_to_reserve = message.told_to_hold, message.missing, self.reserved
        return True

    @property
    def is_open(self) -> bool:
        """Something may be granted to it."""
        return self.room > 0 or self.wants > 0

    @property
    def in_use(self) -> frozenset[WeightsId]:
        """Weights that something runs on."""
        return frozenset(held.weights for held in self.groups.values() if not held.is_over)

    @property
    def has_promised(self) -> bool:
        """It keeps room, or is asked to, for what may move to it."""
        return bool(self.reservations or self.reserved)

    def weights_for(self, key: GroupKey, exact: WeightsId | None) -> WeightsId:
        """Those that this group runs on here, or would."""
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
        """The message for the replica; None if there is nothing to say."""
        awaited = frozenset(reservation.lease for reservation in self.reservations)
        speaks = self.tasks or self.confirmed or self.revoked or self.handovers or self.is_released
        if not speaks and to_hold == self.told_to_hold and awaited == self.told_to_reserve:
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
        self.told_to_hold, self.told_to_reserve = to_hold, awaited
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
        """Of what those want of which something has changed."""
        for replica in self._touched.values():
            self.wanting.note(replica)

    def grants(self, to_hold: Callable[[KnownReplica], WeightsId | None], *, alike: object) -> list[Send]:
        """For those of which something has changed: each message is of one among hundreds. `alike`: what says of all of
        them what they should hold; None: that may have changed for any."""
        is_as_before = alike is not None and alike == self._alike
        self._alike = alike
        looked_at = [self._touched[place] for place in sorted(self._touched)] if is_as_before else list(self)
        self._touched.clear()
        grants = [replica.grant(to_hold(replica)) for replica in looked_at]
        return [grant for grant in grants if grant is not None]

    def remove(self, owner: Owner) -> None:
        replica = self.of(owner)
        if replica is not None:
            del self._replicas[owner[0]]
            self._touched.pop(replica.place, None)
            self.wanting.forget(replica)


class Wanting:
    """Those that want fresh work, by the weights that it would begin on: who wants most comes first, and of two that
    want as much, who has been known for longer.

    A heap for each weights. An entry that is not true any more is dropped when it comes to the top, or with all the
    others once they are most of a heap.
    """

    def __init__(self) -> None:
        self._heaps: dict[WeightsId, list[tuple[int, int]]] = {}
        """(less what it wants, its place)"""
        self._noted: dict[int, tuple[KnownReplica, WeightsId, int]] = {}
        """By their places, with the weights and the wish of their newest entries."""

    def note(self, replica: KnownReplica) -> None:
        """Whenever its wish or its weights have changed."""
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
        """Of those on other weights than these. It is noted again by whoever took it, or is gone."""
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
