"""Indexed decisions equal those of a full scan: the reference implementation here gets the same messages."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.pipeline.data.accounts import Owner
from engine.pipeline.data.assignment import LEASES_PER_INCARNATION, Assignment
from engine.pipeline.data.brain import DataBrain
from engine.pipeline.data.groups import OpenGroup
from engine.pipeline.data.known_replicas import KnownReplica, KnownReplicas
from engine.pipeline.data.moves import RESERVE_WITHIN_S, Mover
from engine.pipeline.data.prompts import PromptPool
from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.message import Message
from engine.policy.lineage import WeightsId
from engine.sim.cluster import Brains
from engine.sim.fleet.fleet import Fleet
from engine.sim.scenario import SCHEDULES, simulate
from engine.spec.schedules import ScheduleName
from tests.engine.sim.fleet.fleets import setup_of

SEEDS = 12


class AllReplicas(KnownReplicas):
    def grants(self, to_hold: Callable[[KnownReplica], WeightsId | None], *, alike: object) -> list[Send]:
        return [grant for grant in [replica.grant(to_hold(replica)) for replica in self] if grant is not None]


class AllMoves(Mover):
    def is_source(self, owner: Owner) -> bool:
        return any(owner == move.source for move in self._pending.values())

    def receive(self, replica: KnownReplica, now: float) -> None:
        for move in [move for move in self._pending.values() if move.host == replica.owner]:
            if move.weights in replica.residents and {kept.lease for kept in move.reservations} <= replica.reserved:
                self._commit(move, replica, now)
        for move in [move for move in self._pending.values() if replica.owner in (move.source, move.host)]:
            if move.weights not in replica.residents:
                self._cancel(move)

    def expire(self, now: float) -> None:
        for move in [move for move in self._pending.values() if now - move.since > RESERVE_WITHIN_S]:
            self._cancel(move)

    def lose(self, owner: Owner) -> None:
        for move in [move for move in self._pending.values() if owner in (move.source, move.host)]:
            self._cancel(move)

    def _begin(
        self, source: KnownReplica, host: KnownReplica, weights: WeightsId, groups: list[OpenGroup], now: float
    ) -> None:
        is_free = all(source.owner not in (move.source, move.host) for move in self._pending.values())
        if is_free and not self.is_source(host.owner):
            super()._begin(source, host, weights, groups, now)

    def _update_reservations(self, host: Owner) -> None:
        replica = self._replicas.of(host)
        if replica is not None:
            replica.reservations = tuple(
                kept for move in self._pending.values() if move.host == host for kept in move.reservations
            )


class AssignmentByAll(Assignment):
    """Sorts all replicas for every group, and tries one after the other."""

    def __init__(self, brain: DataBrain) -> None:
        incarnation = brain._assignment._last_lease // LEASES_PER_INCARNATION
        super().__init__(brain._state, incarnation=incarnation)
        self.replicas = AllReplicas()
        self.moves = AllMoves(
            books=brain._state.books, replicas=self.replicas, new_lease=self._new_lease, partials=self.partials
        )

    def assign(self, now: float, prompts: PromptPool | None) -> list[Send]:
        self.moves.expire(now)
        self.partials.settle(self._state.training, self.replicas)
        while prompts is not None and not prompts.is_dry:
            with_room = sorted((each for each in self.replicas if each.is_open), key=lambda each: -each.wants)
            if not any(self._assign_one(each, now, prompts) for each in with_room):
                break
        to_hold = None if prompts is None else prompts.to_hold()
        return self.replicas.grants(lambda replica: self._to_hold(replica, to_hold), alike=None)


class BothWays(DataBrain):
    """Runs a brain with full scans in parallel, and must never differ from it."""

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self._slow = DataBrain(*arguments, **fields)
        self._slow._assignment = AssignmentByAll(self._slow)

    def handle(self, message: Message, now: float) -> list[Effect]:
        effects = super().handle(message, now)
        assert effects == self._slow.handle(message, now)
        assert self._state._ready_ordinals == {group.key.ordinal for group in self._state.ready}
        return effects


@pytest.mark.long_except("inflight")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_indexed_decisions_equal_full_scan_under_faults(schedule: ScheduleName) -> None:
    for seed in range(SEEDS):
        simulate(seed, schedule, brains=Brains(data=BothWays))


@pytest.mark.long_except("one_step", "partial")
@pytest.mark.parametrize("schedule", ["sync_split", "one_step", "partial", "paper", "laminar"])
def test_indexed_decisions_equal_full_scan_in_a_fleet(schedule: str) -> None:
    setup = setup_of(schedule, rollout_devices=20, groups_per_step=40)
    fleet = Fleet(setup)
    fleet._data = BothWays(setup.plan)
    fleet.run()


@pytest.mark.long_except("40-partial", "40-laminar")
@pytest.mark.parametrize("schedule", ["partial", "laminar"])
@pytest.mark.parametrize("num_replicas", [40, 400])
def test_cost_of_a_message_does_not_grow_with_replicas(
    schedule: str, num_replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, messages = 0, 0
    grant, receive = KnownReplica.grant, Assignment.receive

    def counted_grant(replica: KnownReplica, to_hold: WeightsId | None) -> Send | None:
        nonlocal looks
        looks += 1
        return grant(replica, to_hold)

    def counted_hear(assignment: Assignment, *arguments: Any) -> None:
        nonlocal messages
        messages += 1
        receive(assignment, *arguments)

    monkeypatch.setattr(KnownReplica, "grant", counted_grant)
    monkeypatch.setattr(Assignment, "receive", counted_hear)
    Fleet(setup_of(schedule, rollout_devices=num_replicas, groups_per_step=40, steps=1, warm_steps=1)).run()
    assert messages > num_replicas and looks < 4 * messages
