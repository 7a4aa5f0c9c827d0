"""Assignment: the replica that works on each group.

Each replica reports what it holds and how many sequences it could start; data assigns groups one at a time to the
replica with most room. Evaluations come first: a replica that holds their weights answers, and an idle one is ordered
to install them.

Invariants:
- a replica without room, less pending grants, is assigned nothing; its last group may exceed the room, and waits there;
- a group with exact weights is assigned only to a replica that holds them; progress is sent only to the weights that
  wrote it;
- a grant that its replica does not list in time counts as lost, and is granted again;
- a group that a replica lists but does not own is handed over to its new owner, or stopped;
- a message costs time in its own replica's groups, not in the number of replicas, unless groups wait for an owner.
"""

# Over budget: granting, owning and revoking a group are one state machine.

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
from engine.pipeline.plan import MAX_OWNERS
from engine.pipeline.records import GroupKey, HandOver, HeldGroup
from engine.policy.lineage import WeightsId

# Long against a message's latency (milliseconds), short against a user's patience.
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

    # ── syncs ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, message: ReplicaSynced, now: float) -> None:
        replica = self.replicas.newest_of(message.replica)
        if replica is not None and replica.incarnation < message.incarnation:
            self.lose(replica.owner)
            replica = None
        if replica is None:
            replica = self.replicas.add(message.replica, message.incarnation)
        if message.incarnation < replica.incarnation:
            return  # a replica that was given up: its samples count, its requests do not
        if not replica.receive(message):
            return
        if message.progress:
            self._take_stopped_samples(replica, message)
        self._check_held_groups(replica, now)
        self._regrant_lost_groups(replica, now)
        self.moves.receive(replica, now)
        promised = self.moves.promised(replica)
        if promised:
            replica.take_room(promised)
        if replica.is_leaving:
            self._release_leaving(replica, now)

    def failed_with(self, owner: Owner) -> list[GroupKey]:
        """Notes that this replica failed at its work. Returns the groups that were in hand at `MAX_OWNERS` failures."""
        suspects = [group for book in self._state.books() for group in book.owned_by(owner) if group.is_suspect]
        for group in suspects:
            group.num_failed_owners += 1
        return [group.key for group in suspects if group.num_failed_owners >= MAX_OWNERS]

    def lose(self, owner: Owner) -> None:
        self.moves.lose(owner)
        self.replicas.remove(owner)
        for book in self._state.books():
            book.give_back(book.owned_by(owner))

    def _check_held_groups(self, replica: KnownReplica, now: float) -> None:
        for held in replica.groups.values():
            group = self._group(held.key)
            if held.is_over and (group is None or group.owner != replica.owner):
                continue
            if group is None and self._state.is_unknown(held.key) and self._may_write(held.weights):
                group = self._state.training.open(held.key)
            if group is not None and group.owner == replica.owner:
                group.is_begun = group.is_begun or held.lease == group.lease
            elif group is not None and group.owner is None and self._may_adopt(held, group):
                granted_at = group.granted_at  # kept: samples that the replica lacks are granted again at once
                self._book(held.key).assign(group, replica.owner, lease=held.lease, now=now)
                group.granted_at, group.is_begun = granted_at, True
            elif group is not None and group.source == replica.owner and group.owner is not None:
                host, host_incarnation = group.owner
                order = HandOver(key=held.key, lease=group.lease, host=host, host_incarnation=host_incarnation)
                replica.handovers.append(order)
            else:
                replica.revoked.append(held)

    def _may_adopt(self, held: HeldGroup, group: OpenGroup) -> bool:
        """True if the replica may keep a group that it held when data restarted or gave the replica up."""
        if held.lease < group.lease or group.exact not in (None, held.weights):
            return False
        return held.key.evaluation is not None or self._may_write(held.weights)

    def _may_write(self, weights: WeightsId) -> bool:
        state = self._state
        staleness = state.lineage.staleness(weights, at=state.trained_version)
        return weights.epoch == state.lineage.epoch or state.plan.schedule.may_train(staleness=staleness)

    def _regrant_lost_groups(self, replica: KnownReplica, now: float) -> None:
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
        """Takes the group from its owner: another replica begins it again, under a new lease."""
        group.avoid, group.num_overdue, group.lease = group.owner, group.num_overdue + 1, self._new_lease()
        self.partials.forget(group)
        self._give_back(book, group)

    def fork(self) -> None:
        """Running samples continue if they may still be trained on; their owners lose the rest. Prompts without a
        finished sample are closed, so that they start again in order."""
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

    def _take_stopped_samples(self, replica: KnownReplica, message: ReplicaSynced) -> None:
        stopped = {progress.key.group for progress in message.progress}
        for book in self._state.books():
            groups = [group for group in book.owned_by(replica.owner) if group.key in stopped]
            self.partials.take(message.progress, groups)
            book.give_back(groups)

    def _release_leaving(self, replica: KnownReplica, now: float) -> None:
        replica.wants = replica.room = 0
        for book in self._state.books():  # grants that were on their way, or arrived too late
            book.give_back(group for group in book.owned_by(replica.owner) if group.key not in replica.groups)
        if replica.is_empty:
            replica.is_released = True
        else:
            self.moves.plan_leave(replica, now)

    # ── assigning ─────────────────────────────────────────────────────────────────────────────────────────────────

    def assign(self, now: float, prompts: PromptPool | None) -> list[Send]:
        """`prompts` is None while data only listens, or pauses."""
        self.moves.expire(now)
        self.partials.settle(self._state.training, self.replicas)
        self.replicas.note_changes()
        while prompts is not None and not prompts.is_dry:
            if not (self._assign_waiting(now, prompts) if self._has_unowned else self._assign_fresh(now, prompts)):
                break
        to_hold = None if prompts is None else prompts.to_hold()
        return self.replicas.grants(lambda replica: self._to_hold(replica, to_hold), alike=self._hold_key(to_hold))

    @property
    def _has_unowned(self) -> bool:
        """True if groups wait for an owner; which of them a replica may take depends on the replica."""
        return any(book.num_unowned for book in self._state.books())

    def _assign_waiting(self, now: float, prompts: PromptPool) -> bool:
        with_room = sorted((each for each in self.replicas if each.is_open), key=lambda each: -each.wants)
        return any(self._assign_one(each, now, prompts) for each in with_room)

    def _assign_fresh(self, now: float, prompts: PromptPool) -> bool:
        """Gives a fresh group to the replica that wants most. Weights that may start none are not tried again."""
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
        self.partials.count_saved(group)
        replica.take_room(len(group.missing))

    def _assign_one(self, replica: KnownReplica, now: float, prompts: PromptPool) -> bool:
        if not replica.is_open or replica.is_leaving or self.moves.is_source(replica.owner):
            return False
        choice = self._next_group(replica, prompts)
        if choice is None:
            return False
        book, group = choice
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
        """Samples that do not fit wait on the replica, unless its room is promised to a move."""
        return num_samples <= room or (room > 0 and not replica.has_promised)

    def _is_kept_free(self, replica: KnownReplica) -> bool:
        """True if the replica is about to install an evaluation's weights, whose slot fresh work would take."""
        wanted = self._wanted_for_evaluation(replica)
        return wanted not in (None, replica.weights) and replica.weights not in replica.in_use

    # ── weights to hold ───────────────────────────────────────────────────────────────────────────────────────────

    def _hold_key(self, for_training: WeightsId | None) -> object:
        """While this key is unchanged, the weights that a replica must hold depend on that replica's messages alone.
        None: they may change for any replica, while an evaluation's prompts wait for an owner."""
        if self._state.evaluations and self._has_unowned:
            return None
        left = [(each.weights, len(each.groups)) for each in self._state.evaluations if not self._keeps_version]
        return for_training, left

    def _to_hold(self, replica: KnownReplica, for_training: WeightsId | None) -> WeightsId | None:
        wanted = self._wanted_for_evaluation(replica)
        return wanted if wanted is not None else (for_training if replica.weights == for_training else None)

    def _wanted_for_evaluation(self, replica: KnownReplica) -> WeightsId | None:
        """The weights that this replica must hold for an evaluation."""
        for evaluation in self._state.evaluations:
            is_interrupted = not self._keeps_version and evaluation.weights == replica.weights
            if is_interrupted and evaluation.groups.owned_by(replica.owner):
                return evaluation.weights  # else newer weights would be installed under its answers
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
        """Replicas that never drain are never empty: if none holds these weights, this one installs them in its next
        free slot."""
        if self._state.plan.weight_slots == 1 or any(weights in replica.residents for replica in self.replicas):
            return None
        staying = [replica for replica in self.replicas if not replica.is_leaving and replica.missing != weights]
        return min(
            staying, key=lambda each: (each.ordered_weights != weights, len(each.in_use), each.number), default=None
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
