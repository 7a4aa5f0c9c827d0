"""Dealing: which replica works on which group.

Data hears from each replica what it holds and how many sequences it could start (its seat), and deals groups, one at
a time, to whoever has most room. Evaluations come first: a replica that holds the wanted version answers, and one
that has nothing to do is told to take that version.

Invariants:
- nothing is dealt beyond what a replica said it has room for, less what is still on its way to it;
- a group that wants exact weights is dealt only to a replica that holds them;
- what a replica was dealt and does not list in time was lost on the way, and is dealt to it again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine.pipeline.effects import Send
from engine.pipeline.evaluation import Evaluation
from engine.pipeline.groups import GroupBook, OpenGroup
from engine.pipeline.messages import ReplicaSynced, WorkGranted, rollout_address
from engine.pipeline.records import GroupKey, GroupTask, SampleKey

# Long against a message's way (milliseconds), short against a person's patience.
GRANT_LOST_AFTER_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Seat:
    """What is known of one replica, from its last sync."""

    replica: int
    incarnation: int
    serial: int = -1
    version: int = -1
    wants: int = 0
    holds: frozenset[GroupKey] = frozenset()
    evaluate_at: int | None = None
    confirmed: list[SampleKey] = field(default_factory=list)
    """Taken since the last answer."""

    @property
    def owner(self) -> tuple[int, int]:
        return (self.replica, self.incarnation)


@dataclass(slots=True, kw_only=True)
class Hand:
    """What a seat is being dealt in this round."""

    seat: Seat
    tasks: list[GroupTask]
    room: int
    is_empty: bool


class Dealer:
    def __init__(self, *, group_size: int) -> None:
        self.training = GroupBook()
        self.evaluations: list[Evaluation] = []
        self._group_size = group_size
        self._seats: dict[int, Seat] = {}

    def hear(self, message: ReplicaSynced) -> None:
        seat = self._seats.get(message.replica)
        if seat is None or seat.incarnation < message.incarnation:
            if seat is not None:
                self.lose(seat.replica, seat.incarnation)
            seat = self._seats[message.replica] = Seat(replica=message.replica, incarnation=message.incarnation)
        if message.incarnation < seat.incarnation:
            return  # one that was given up speaks: its samples count, its wishes do not
        seat.confirmed += [trajectory.key for trajectory in message.finished]
        if message.serial <= seat.serial:
            return
        seat.serial, seat.version, seat.wants = message.serial, message.version, message.wants
        seat.holds, seat.evaluate_at = frozenset(message.holds), message.evaluate_at
        for evaluation in self.evaluations:
            if evaluation.version == message.missing_version:
                evaluation.groups.allow_any_version()

    def lose(self, replica: int, incarnation: int) -> None:
        for book in self._books():
            book.give_back(book.owned_by((replica, incarnation)))
        seat = self._seats.get(replica)
        if seat is not None and seat.incarnation == incarnation:
            del self._seats[replica]

    def deal(self, now: float, *, new_ordinal: Callable[[int], int | None]) -> list[Send]:
        """`new_ordinal`: the next prompt of training for a replica that holds this version, if it may start one."""
        hands = [self._hand(seat, now) for seat in self._seats.values()]
        while any(self._deal_one(hand, now, new_ordinal) for hand in sorted(hands, key=lambda hand: -hand.room)):
            pass
        return [grant for hand in hands if (grant := self._grant(hand)) is not None]

    def _hand(self, seat: Seat, now: float) -> Hand:
        self._take_back_misfits(seat, now)
        on_the_way = [group for book in self._books() for group in book.owned_by(seat.owner)]
        on_the_way = [group for group in on_the_way if group.key not in seat.holds]
        lost = [group for group in on_the_way if now - group.granted_at >= GRANT_LOST_AFTER_S]
        for group in lost:
            group.granted_at = now
        return Hand(
            seat=seat,
            tasks=[group.task() for group in lost],
            room=seat.wants - sum(len(group.missing) for group in on_the_way),
            is_empty=not seat.holds and not on_the_way,
        )

    def _take_back_misfits(self, seat: Seat, now: float) -> None:
        """Evaluation groups that this replica did not start, and cannot any more because its weights moved on."""
        for evaluation in self.evaluations:
            evaluation.groups.give_back(
                group
                for group in evaluation.groups.owned_by(seat.owner)
                if group.key not in seat.holds
                and group.exact_version not in (None, seat.version)
                and now - group.granted_at >= GRANT_LOST_AFTER_S
            )

    def _deal_one(self, hand: Hand, now: float, new_ordinal: Callable[[int], int | None]) -> bool:
        if hand.room <= 0:
            return False
        found = self._next_group(hand, new_ordinal)
        if found is None:
            return False
        book, group = found
        # A group larger than a whole replica is dealt to an empty one: its engine queues what does not fit.
        if len(group.missing) > hand.room and not hand.is_empty:
            return False
        hand.tasks.append(book.grant_next(hand.seat.owner, now))
        hand.room -= len(group.missing)
        hand.is_empty = False
        return True

    def _next_group(self, hand: Hand, new_ordinal: Callable[[int], int | None]) -> tuple[GroupBook, OpenGroup] | None:
        version = hand.seat.version
        for evaluation in self.evaluations:
            group = evaluation.groups.next_unowned()
            if group is not None and group.exact_version in (None, version):
                return evaluation.groups, group
        if self._evaluate_at(hand) not in (None, version):
            return None  # it is about to take other weights
        if self.training.next_unowned() is None:
            fits = hand.is_empty or self._group_size <= hand.room
            ordinal = new_ordinal(version) if fits else None
            if ordinal is None:
                return None
            self.training.open(GroupKey(ordinal=ordinal), num_samples=self._group_size)
        group = self.training.next_unowned()
        return None if group is None else (self.training, group)

    def _evaluate_at(self, hand: Hand) -> int | None:
        """The version that this replica should hold for an evaluation's sake."""
        for evaluation in self.evaluations:
            waits = evaluation.groups.next_unowned()
            if waits is None or waits.exact_version is None:
                continue
            if hand.is_empty or hand.seat.version == evaluation.version:
                return evaluation.version
        return None

    def _grant(self, hand: Hand) -> Send | None:
        seat, evaluate_at = hand.seat, self._evaluate_at(hand)
        if not (hand.tasks or seat.confirmed or evaluate_at != seat.evaluate_at):
            return None
        seat.evaluate_at = evaluate_at
        taken, seat.confirmed = tuple(seat.confirmed), []
        grant = WorkGranted(incarnation=seat.incarnation, taken=taken, tasks=tuple(hand.tasks), evaluate_at=evaluate_at)
        return Send(to=rollout_address(seat.replica), message=grant)

    def _books(self) -> list[GroupBook]:
        return [self.training, *(evaluation.groups for evaluation in self.evaluations)]
