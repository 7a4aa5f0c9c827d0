"""Assignment: the replica that works on each group.

Data hears from each replica what it holds and how many sequences it could start, and assigns groups, one at a
time, to whoever has most room. Evaluations come first: a replica that holds the wanted weights answers, and one
that has nothing to do is told to take them.

Invariants:
- nothing is assigned to a replica without room, less what is on its way to it; of its last group the rest waits there;
- a group that wants exact weights is assigned only to a replica that holds them; what a sample goes on from is sent
  only to the weights that wrote it;
- a grant that its replica does not list in time was lost on the way, and is granted again;
- a group that a replica lists and does not own is taken from it: handed over to its new owner, or stopped;
- a message costs what its own replica holds, however many others there are, unless groups wait for an owner.
"""

# Over budget: who may have a group, who has it and who loses it are one question.

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from engine.pipeline.data.accounts import Owner
from engine.pipeline.data.groups import GroupBook, OpenGroup
from engine.pipeline.data.known_replicas import KnownReplica, KnownReplicas
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


class Assignment:
    def __init__(self, state: DataState, *, incarnation: int) -> None:
        self._state = state
        self._last_lease = incarnation * LEASES_PER_INCARNATION
        self._keeps_version = state.plan.schedule.keeps_version
        self.replicas = KnownReplicas()
        self.partials = PartialPool(
            keeps_version=self._keeps_version, mixes_versions=state.plan.schedule.mixes_versions
        )
        self.moves = Mover(books=state.books, replicas=self.replicas, new_lease=self._new_lease, partials=self.partials)

    def _new_lease(self) -> int:
        self._last_lease += 1
        return self._last_lease

    # ── hearing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def hear(self, message: ReplicaSynced, now: float) -> None:
        replica = self.replicas.newest_of(message.replica)
        if replica is not None and replica.incarnation < message.incarnation:
            self.lose(replica.owner)
            replica = None
        if replica is None:
            replica = self.replicas.add(message.replica, message.incarnation)
        if message.incarnation < replica.incarnation:
            return  # one that was given up speaks: its samples count, its wishes do not
        if not replica.hear(message):
            return
        if message.progress:
            self._take_what_was_stopped(replica, message)
        self._judge_what_it_holds(replica, now)
        self._look_for_what_is_lost(replica, now)
        self.moves.hear(replica, now)
        promised = self.moves.promised(replica)
        if promised:
            replica.take_room(promised)
        if replica.is_leaving:
            self._see_off(replica, now)

    def lose(self, owner: Owner) -> None:
        self.moves.lose(owner)
        self.replicas.remove(owner)
        for book in self._state.books():
            book.give_back(book.owned_by(owner))

    def _judge_what_it_holds(self, replica: KnownReplica, now: float) -> None:
        for held in replica.groups.values():
            group = self._group(held.key)
            if held.is_over and (group is None or group.owner != replica.owner):
                continue
            if group is None and self._state.is_unknown(held.key) and self._may_write(held.weights):
                group = self._state.training.open(held.key)
            if group is not None and group.owner == replica.owner:
                group.is_begun = group.is_begun or held.lease == group.lease
            elif group is not None and group.owner is None and self._may_adopt(held, group):
                said_at = group.granted_at  # what is absent there was lost with us, and is granted again at once
                self._book(held.key).assign(group, replica.owner, lease=held.lease, now=now)
                group.granted_at, group.is_begun = said_at, True
            elif group is not None and group.source == replica.owner and group.owner is not None:
                host, host_incarnation = group.owner
                order = HandOver(key=held.key, lease=group.lease, host=host, host_incarnation=host_incarnation)
                replica.handovers.append(order)
            else:
                replica.revoked.append(held)

    def _may_adopt(self, held: HeldGroup, group: OpenGroup) -> bool:
        """Its replica worked on this when data began again, or was thought to be lost."""
        if held.lease < group.lease or group.exact not in (None, held.weights):
            return False
        return held.key.evaluation is not None or self._may_write(held.weights)

    def _may_write(self, weights: WeightsId) -> bool:
        state = self._state
        staleness = state.lineage.staleness(weights, at=state.trained_version)
        return weights.epoch == state.lineage.epoch or state.plan.schedule.may_train(staleness=staleness)

    def _look_for_what_is_lost(self, replica: KnownReplica, now: float) -> None:
        for book in self._state.books():
            for group in book.owned_by(replica.owner):
                held = replica.groups.get(group.key)
                is_held = held is not None and held.lease <= group.lease
                absent = group.missing.difference(held.samples if held is not None and is_held else ())
                if not absent:
                    continue
                if now - group.granted_at < GRANT_LOST_AFTER_S:
                    replica.take_room(len(absent))
                elif group.exact is not None and group.exact not in replica.residents:
                    self._give_back(book, group)
                else:
                    group.granted_at = now
                    self._order(replica, group, absent, is_handed_over=self._is_coming(group))
                    replica.take_room(len(absent))

    def _order(
        self, replica: KnownReplica, group: OpenGroup, samples: set[int], *, is_handed_over: bool = False
    ) -> None:
        weights = replica.weights_for(group.key, group.exact)
        self.partials.keep_what_fits(group, weights)
        task = group.task(samples, is_handed_over=is_handed_over)
        if task.progress and self._keeps_version:
            task = replace(task, exact=weights)
        replica.tasks.append(task)

    def _is_coming(self, group: OpenGroup) -> bool:
        source = None if group.source is None else self.replicas.of(group.source)
        return source is not None and group.key in source.groups

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
        """Of the samples that run, only those that may still be trained on go on. The rest is taken from its owners;
        prompts of which nothing is left are forgotten, so that they start again in their order."""
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
        replica = None if group.owner is None else self.replicas.of(group.owner)
        if replica is None:
            return False
        weights = replica.weights_for(group.key, group.exact)
        return group.exact in (None, weights) and weights in replica.residents and self._may_write(weights)

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_what_was_stopped(self, replica: KnownReplica, message: ReplicaSynced) -> None:
        stopped = {progress.key.group for progress in message.progress}
        for book in self._state.books():
            groups = [group for group in book.owned_by(replica.owner) if group.key in stopped]
            self.partials.take(message.progress, groups)
            book.give_back(groups)

    def _see_off(self, replica: KnownReplica, now: float) -> None:
        replica.wants = replica.room = 0
        for book in self._state.books():  # what was on its way to it, or came to late
            book.give_back(group for group in book.owned_by(replica.owner) if group.key not in replica.groups)
        if replica.is_empty:
            replica.is_released = True
        else:
            self.moves.plan_leave(replica, now)

    # ── assigning ─────────────────────────────────────────────────────────────────────────────────────────────────

    def assign(self, now: float, prompts: PromptPool | None) -> list[Send]:
        """`prompts` is None while data only listens."""
        self.moves.expire(now)
        self.partials.settle(self._state.training, self.replicas)
        self.replicas.note_changes()
        while prompts is not None and not prompts.is_dry:
            if not (self._assign_waiting(now, prompts) if self._some_wait else self._assign_fresh(now, prompts)):
                break
        to_hold = None if prompts is None else prompts.to_hold()
        return self.replicas.grants(lambda replica: self._to_hold(replica, to_hold), alike=self._alike(to_hold))

    @property
    def _some_wait(self) -> bool:
        """Groups without an owner; who may take which differs from one replica to the next."""
        return any(book.num_unowned for book in self._state.books())

    def _assign_waiting(self, now: float, prompts: PromptPool) -> bool:
        with_room = sorted((each for each in self.replicas if each.is_open), key=lambda each: -each.wants)
        return any(self._assign_one(each, now, prompts) for each in with_room)

    def _assign_fresh(self, now: float, prompts: PromptPool) -> bool:
        """What may begin on some weights may begin on them anywhere."""
        plan, wanting = self._state.plan, self.replicas.wanting
        refused: set[WeightsId] = set()
        tried: list[KnownReplica] = []
        group: OpenGroup | None = None
        while group is None and (replica := wanting.take_first(but=refused)) is not None:
            tried.append(replica)
            is_free = not replica.is_leaving and not self.moves.is_source(replica.owner)
            if is_free and self._fits(replica, plan.group_size + plan.num_spare, replica.wants):
                group = prompts.start(replica.weights)
                if group is None:
                    refused.add(replica.weights)
                else:
                    self._give(group, self._state.training, replica, now)
        for replica in tried:
            wanting.note(replica)
        return group is not None

    def _give(self, group: OpenGroup, book: GroupBook, replica: KnownReplica, now: float) -> None:
        book.assign(group, replica.owner, lease=self._new_lease(), now=now)
        self._order(replica, group, group.missing)
        self.partials.goes_on(group)
        replica.take_room(len(group.missing))

    def _assign_one(self, replica: KnownReplica, now: float, prompts: PromptPool) -> bool:
        if not replica.is_open or replica.is_leaving or self.moves.is_source(replica.owner):
            return False
        found = self._next_group(replica, prompts)
        if found is None:
            return False
        book, group = found
        self._give(group, book, replica, now)
        self.replicas.wanting.note(replica)
        return True

    def _next_group(self, replica: KnownReplica, prompts: PromptPool) -> tuple[GroupBook, OpenGroup] | None:
        for evaluation in self._state.evaluations:
            group = next(evaluation.groups.unowned(), None)
            if group is None or not (group.exact is None or group.exact in replica.residents):
                continue
            room = replica.wants if group.exact in (None, replica.weights) else replica.room
            if self._fits(replica, len(group.missing), room):
                return evaluation.groups, group
        for group in self._state.training.unowned():
            if group.exact is None:
                continue
            if group.exact in replica.residents and self._fits(replica, len(group.missing), replica.room):
                return self._state.training, group
        if replica.wants <= 0 or self._is_kept_free(replica):
            return None
        group = self._next_fresh(replica, prompts)
        return None if group is None else (self._state.training, group)

    def _next_fresh(self, replica: KnownReplica, prompts: PromptPool) -> OpenGroup | None:
        for group in self._state.training.unowned():
            if group.exact is None and prompts.may_begin(replica.weights) and self._suits(replica, group):
                return group if self._fits(replica, len(group.missing), replica.wants) else None
        plan = self._state.plan
        fits = self._fits(replica, plan.group_size + plan.num_spare, replica.wants)
        return prompts.start(replica.weights) if fits else None

    def _suits(self, replica: KnownReplica, group: OpenGroup) -> bool:
        return group.avoid != replica.owner or len(self.replicas) == 1

    def _fits(self, replica: KnownReplica, num_samples: int, room: int) -> bool:
        """Samples that do not fit wait there, unless others were promised the room."""
        return num_samples <= room or (room > 0 and not replica.has_promised)

    def _is_kept_free(self, replica: KnownReplica) -> bool:
        """It is about to take an evaluation's weights, and fresh work would take their place."""
        wanted = self._wanted_for_evaluation(replica)
        return wanted not in (None, replica.weights) and replica.weights not in replica.in_use

    # ── weights to hold ───────────────────────────────────────────────────────────────────────────────────────────

    def _alike(self, for_training: WeightsId | None) -> object:
        """As long as it is the same, what a replica should hold changes with that replica alone. None: it may with any:
        while prompts of an evaluation wait for somebody, or once one has ended where answers are interrupted."""
        if self._state.evaluations and self._some_wait:
            return None
        left = [(each.weights, len(each.groups)) for each in self._state.evaluations if not self._keeps_version]
        return for_training, left

    def _to_hold(self, replica: KnownReplica, for_training: WeightsId | None) -> WeightsId | None:
        wanted = self._wanted_for_evaluation(replica)
        return wanted if wanted is not None else (for_training if replica.weights == for_training else None)

    def _wanted_for_evaluation(self, replica: KnownReplica) -> WeightsId | None:
        """The weights that this replica should hold for an evaluation's sake."""
        for evaluation in self._state.evaluations:
            is_interrupted = not self._keeps_version and evaluation.weights == replica.weights
            if is_interrupted and evaluation.groups.owned_by(replica.owner):
                return evaluation.weights  # or newer ones would be installed under its answers
            waits = next(evaluation.groups.unowned(), None)
            if waits is None or waits.exact is None:
                continue
            if (
                replica.is_empty
                or replica.weights == evaluation.weights
                or replica is self._next_for(evaluation.weights)
            ):
                return evaluation.weights
        return None

    def _next_for(self, weights: WeightsId) -> KnownReplica | None:
        """Replicas that never drain are never empty: while none holds these weights, one takes them as soon as it has
        a slot."""
        if self._state.plan.weight_slots == 1 or any(weights in replica.residents for replica in self.replicas):
            return None
        staying = [replica for replica in self.replicas if not replica.is_leaving and replica.missing != weights]
        return min(
            staying, key=lambda each: (each.told_to_hold != weights, len(each.in_use), each.number), default=None
        )

    def _group(self, key: GroupKey) -> OpenGroup | None:
        if key.evaluation is None:
            return self._state.training.get(key)
        return next((group for book in self._state.books() if (group := book.get(key)) is not None), None)

    def _book(self, key: GroupKey) -> GroupBook:
        return next(book for book in self._state.books() if key in book)

    def owned(self) -> Iterator[tuple[GroupBook, OpenGroup]]:
        for book in self._state.books():
            for group in book:
                if group.owner is not None:
                    yield book, group
