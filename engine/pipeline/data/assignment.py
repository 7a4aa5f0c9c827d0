"""Dealing: which replica works on which group.

Data hears from each replica what it holds and how many sequences it could start (its seat), and deals groups, one at
a time, to whoever has most room. Evaluations come first: a replica that holds the wanted weights answers, and one
that has nothing to do is told to take them.

Invariants:
- nothing is dealt to a replica without room, less what is still on its way to it; the samples of its last group that
  do not fit wait there, so that no slot is empty for want of three more;
- a group that wants exact weights is dealt only to a replica that holds them; what a sample goes on from is sent only
  to the weights that wrote it;
- what a replica was dealt and does not list in time was lost on the way, and is dealt to it again;
- what a replica lists and does not own is taken from it: handed over to its new owner, or stopped.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from engine.pipeline.data.groups import GroupBook, OpenGroup, Owner
from engine.pipeline.data.known_replicas import Seat, Seats
from engine.pipeline.data.moves import Mover
from engine.pipeline.data.partials import PartialPool
from engine.pipeline.data.prompts import PromptPool
from engine.pipeline.data.state import DataState
from engine.pipeline.effects import Send
from engine.pipeline.messages.to_data import ReplicaSynced
from engine.pipeline.records import GroupKey, HandOver, HeldGroup
from engine.policy.lineage import WeightsId

# Long against a message's way (milliseconds), short against a person's patience.
GRANT_LOST_AFTER_S: Final = 2.0
# Leases of a later incarnation of data are higher than all of an earlier one.
LEASES_PER_INCARNATION: Final = 10**12


class Dealer:
    def __init__(self, state: DataState, *, incarnation: int) -> None:
        self._state = state
        self._last_lease = incarnation * LEASES_PER_INCARNATION
        self._keeps_version = state.plan.schedule.keeps_version
        self.seats = Seats()
        self.partials = PartialPool(keeps_version=self._keeps_version)
        self.moves = Mover(books=state.books, seats=self.seats, new_lease=self._new_lease, partials=self.partials)

    def _new_lease(self) -> int:
        self._last_lease += 1
        return self._last_lease

    # ── hearing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def hear(self, message: ReplicaSynced, now: float) -> None:
        seat = self.seats.newest_of(message.replica)
        if seat is not None and seat.incarnation < message.incarnation:
            self.lose(seat.owner)
            seat = None
        if seat is None:
            seat = self.seats.add(message.replica, message.incarnation)
        if message.incarnation < seat.incarnation:
            return  # one that was given up speaks: its samples count, its wishes do not
        if not seat.hear(message):
            return
        if message.progress:
            self._take_what_was_stopped(seat, message)
        self._judge_what_it_holds(seat, now)
        self._look_for_what_is_lost(seat, now)
        self.moves.hear(seat, now)
        promised = self.moves.promised(seat)
        if promised:
            seat.take_room(promised)
        if seat.is_leaving:
            self._see_off(seat, now)

    def lose(self, owner: Owner) -> None:
        self.moves.lose(owner)
        self.seats.remove(owner)
        for book in self._state.books():
            book.give_back(book.owned_by(owner))

    def _judge_what_it_holds(self, seat: Seat, now: float) -> None:
        for held in seat.holds.values():
            group = self._group(held.key)
            if held.is_over and (group is None or group.owner != seat.owner):
                continue
            if group is None and self._state.is_unknown(held.key) and self._may_write(held.weights):
                group = self._state.training.open(held.key)
            if group is not None and group.owner == seat.owner:
                group.is_begun = group.is_begun or held.lease == group.lease
            elif group is not None and group.owner is None and self._may_adopt(held, group):
                said_at = group.granted_at  # what is absent there was lost with us, and is granted again at once
                self._book(held.key).assign(group, seat.owner, lease=held.lease, now=now)
                group.granted_at, group.is_begun = said_at, True
            elif group is not None and group.source == seat.owner and group.owner is not None:
                host, host_incarnation = group.owner
                order = HandOver(key=held.key, lease=group.lease, host=host, host_incarnation=host_incarnation)
                seat.handovers.append(order)
            else:
                seat.revoked.append(held)

    def _may_adopt(self, held: HeldGroup, group: OpenGroup) -> bool:
        """Its replica worked on this when data began anew, or was thought to be lost."""
        if held.lease < group.lease or group.exact not in (None, held.weights):
            return False
        return held.key.evaluation is not None or self._may_write(held.weights)

    def _may_write(self, weights: WeightsId) -> bool:
        state = self._state
        staleness = state.lineage.staleness(weights, at=state.trained_version)
        return weights.epoch == state.lineage.epoch or state.plan.schedule.may_train(staleness=staleness)

    def _look_for_what_is_lost(self, seat: Seat, now: float) -> None:
        for book in self._state.books():
            for group in book.owned_by(seat.owner):
                held = seat.holds.get(group.key)
                is_held = held is not None and held.lease <= group.lease
                absent = group.missing.difference(held.samples if held is not None and is_held else ())
                if not absent:
                    continue
                if now - group.granted_at < GRANT_LOST_AFTER_S:
                    seat.take_room(len(absent))
                elif group.exact is not None and group.exact not in seat.residents:
                    self._give_back(book, group)
                else:
                    group.granted_at = now
                    self._order(seat, group, absent, is_handed_over=self._is_coming(group))
                    seat.take_room(len(absent))

    def _order(self, seat: Seat, group: OpenGroup, samples: set[int], *, is_handed_over: bool = False) -> None:
        weights = seat.weights_for(group.key, group.exact)
        self.partials.keep_what_fits(group, weights)
        task = group.task(samples, is_handed_over=is_handed_over)
        if task.progress and self._keeps_version:
            task = replace(task, exact=weights)
        seat.tasks.append(task)

    def _is_coming(self, group: OpenGroup) -> bool:
        source = None if group.source is None else self.seats.of(group.source)
        return source is not None and group.key in source.holds

    def _give_back(self, book: GroupBook, group: OpenGroup) -> None:
        book.give_back([group])
        if group.key.evaluation is None and not group.progress:
            group.exact = None

    # ── taking back ───────────────────────────────────────────────────────────────────────────────────────────────

    def begin_elsewhere(self, book: GroupBook, group: OpenGroup) -> None:
        """Not by this owner again, and not under a lease that it knows."""
        group.avoid, group.num_overdue, group.lease = group.owner, group.num_overdue + 1, self._new_lease()
        self.partials.forget(group)
        self._give_back(book, group)

    def fork(self) -> None:
        """Of what runs, only what may still be trained on goes on. The rest is taken from its owners, and prompts of
        which nothing is left are forgotten, so that they are begun again in their order."""
        self.moves.cancel_all()
        for book in self._state.books():
            dead = [group for group in book if not self._outlives_a_fork(group)]
            for group in dead:
                self.partials.forget(group)
            book.give_back(group for group in dead if group.owner is not None)
            for group in dead:
                if book is self._state.training and not group.taken:
                    book.close(group)

    def _outlives_a_fork(self, group: OpenGroup) -> bool:
        seat = None if group.owner is None else self.seats.of(group.owner)
        if seat is None:
            return False
        weights = seat.weights_for(group.key, group.exact)
        return group.exact in (None, weights) and weights in seat.residents and self._may_write(weights)

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_what_was_stopped(self, seat: Seat, message: ReplicaSynced) -> None:
        stopped = {progress.key.group for progress in message.progress}
        for book in self._state.books():
            groups = [group for group in book.owned_by(seat.owner) if group.key in stopped]
            self.partials.take(message.progress, groups)
            book.give_back(groups)

    def _see_off(self, seat: Seat, now: float) -> None:
        seat.wants = seat.room = 0
        for book in self._state.books():  # what was on its way to it, or came to late
            book.give_back(group for group in book.owned_by(seat.owner) if group.key not in seat.holds)
        if seat.is_empty:
            seat.is_released = True
        else:
            self.moves.plan_leave(seat, now)

    # ── dealing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def deal(self, now: float, prompts: PromptPool | None) -> list[Send]:
        """`prompts` is None while data only listens."""
        self.moves.expire(now)
        self.partials.settle(self._state.training, self.seats)
        if prompts is not None:
            open_seats = [seat for seat in self.seats if seat.is_open]
            while any(self._deal_one(seat, now, prompts) for seat in sorted(open_seats, key=lambda seat: -seat.wants)):
                pass
        hold = None if prompts is None else prompts.hold()
        grants = [seat.grant(self._hold_for(seat, hold)) for seat in self.seats]
        return [grant for grant in grants if grant is not None]

    def _deal_one(self, seat: Seat, now: float, prompts: PromptPool) -> bool:
        if not seat.is_open or seat.is_leaving or self.moves.is_source(seat.owner):
            return False
        found = self._next_group(seat, prompts)
        if found is None:
            return False
        book, group = found
        book.assign(group, seat.owner, lease=self._new_lease(), now=now)
        self._order(seat, group, group.missing)
        self.partials.goes_on(group)
        seat.take_room(len(group.missing))
        return True

    def _next_group(self, seat: Seat, prompts: PromptPool) -> tuple[GroupBook, OpenGroup] | None:
        for evaluation in self._state.evaluations:
            group = next(evaluation.groups.unowned(), None)
            if group is None or not (group.exact is None or group.exact in seat.residents):
                continue
            if self._fits(seat, 1, seat.wants if group.exact in (None, seat.weights) else seat.room):
                return evaluation.groups, group
        for group in self._state.training.unowned():
            if group.exact is None:
                continue
            if group.exact in seat.residents and self._fits(seat, len(group.missing), seat.room):
                return self._state.training, group
        if seat.wants <= 0 or self._is_kept_free(seat):
            return None
        group = self._next_fresh(seat, prompts)
        return None if group is None else (self._state.training, group)

    def _next_fresh(self, seat: Seat, prompts: PromptPool) -> OpenGroup | None:
        for group in self._state.training.unowned():
            if group.exact is None and prompts.may_begin(seat.weights) and self._suits(seat, group):
                return group if self._fits(seat, len(group.missing), seat.wants) else None
        plan = self._state.plan
        fits = self._fits(seat, plan.group_size + plan.num_spare, seat.wants)
        return prompts.start(seat.weights) if fits else None

    def _suits(self, seat: Seat, group: OpenGroup) -> bool:
        return group.avoid != seat.owner or len(self.seats) == 1

    def _fits(self, seat: Seat, num_samples: int, room: int) -> bool:
        """What does not fit waits there, unless others were promised the room."""
        return num_samples <= room or (room > 0 and not seat.has_promised)

    def _is_kept_free(self, seat: Seat) -> bool:
        """It is about to take an evaluation's weights, and fresh work would take their place."""
        wanted = self._wanted_for_evaluation(seat)
        return wanted not in (None, seat.weights) and seat.weights not in seat.in_use

    # ── weights to hold ───────────────────────────────────────────────────────────────────────────────────────────

    def _hold_for(self, seat: Seat, hold: WeightsId | None) -> WeightsId | None:
        wanted = self._wanted_for_evaluation(seat)
        return wanted if wanted is not None else (hold if seat.weights == hold else None)

    def _wanted_for_evaluation(self, seat: Seat) -> WeightsId | None:
        """The weights that this replica should hold for an evaluation's sake."""
        for evaluation in self._state.evaluations:
            is_interrupted = not self._keeps_version and evaluation.weights == seat.weights
            if is_interrupted and evaluation.groups.owned_by(seat.owner):
                return evaluation.weights  # or newer ones would be installed under its answers
            waits = next(evaluation.groups.unowned(), None)
            if waits is None or waits.exact is None:
                continue
            if seat.is_empty or seat.weights == evaluation.weights or seat is self._next_for(evaluation.weights):
                return evaluation.weights
        return None

    def _next_for(self, weights: WeightsId) -> Seat | None:
        """Replicas that never drain are never empty: while none holds these weights, one takes them as soon as it has
        a slot."""
        if self._state.plan.weight_slots == 1 or any(weights in seat.residents for seat in self.seats):
            return None
        staying = [seat for seat in self.seats if not seat.is_leaving and seat.missing != weights]
        return min(staying, key=lambda seat: (seat.hold != weights, len(seat.in_use), seat.replica), default=None)

    def _group(self, key: GroupKey) -> OpenGroup | None:
        return next((group for book in self._state.books() if (group := book.get(key)) is not None), None)

    def _book(self, key: GroupKey) -> GroupBook:
        return next(book for book in self._state.books() if key in book)

    def owned(self) -> Iterator[tuple[GroupBook, OpenGroup]]:
        for book in self._state.books():
            for group in book:
                if group.owner is not None:
                    yield book, group
