"""A pool without a database: applies `decide`'s decisions minute by minute, and checks every invariant."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from backend.pools.decision.decide import decide
from backend.pools.decision.views import Decision, HolderView, PoolView, QueuedJobView, TeamView, WaitingReason

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TEAMS = ("ants", "bees", "crabs")


def team(nominal: int = 0, *, borrow: int | None = None, lend: int | None = None, weight: float = 1.0) -> TeamView:
    return TeamView(nominal=nominal, borrow_limit=borrow, lend_limit=lend, weight=weight)


def job(
    name: str,
    devices: int,
    *,
    team: str = "ants",
    waited: timedelta = timedelta(0),
    priority: int = 0,
    preemptible: bool = True,
    most_replicas: int = 0,
) -> QueuedJobView:
    return QueuedJobView(
        id=name,
        team=team,
        devices=devices,
        queued_at=NOW - waited,
        priority=priority,
        preemptible=preemptible,
        max_runtime_s=3_600,
        replica_devices=1,
        most_replicas=most_replicas,
    )


def holder(
    name: str,
    devices: int,
    *,
    team: str = "ants",
    ran: timedelta = timedelta(hours=1),
    priority: int = 0,
    preemptible: bool = True,
    replicas: int = 0,
    most_replicas: int = 0,
    is_leaving: bool = False,
) -> HolderView:
    return HolderView(
        id=name,
        team=team,
        devices=devices,
        since=NOW - ran,
        priority=priority,
        preemptible=preemptible,
        is_leaving=is_leaving,
        may_grow=not is_leaving,
        replica_devices=1,
        replicas=replicas,
        most_replicas=max(replicas, most_replicas),
        ends_by=NOW + timedelta(hours=1),
    )


def pool(
    *queued: QueuedJobView,
    capacity: int = 8,
    teams: Mapping[str, TeamView] | None = None,
    holders: Iterable[HolderView] = (),
    claims: Mapping[str, int] | None = None,
    is_open: bool = True,
) -> PoolView:
    return PoolView(
        capacity=capacity,
        teams=teams if teams is not None else {"ants": team(capacity), "bees": team(0)},
        holders=tuple(holders),
        queued=queued,
        claims=claims or {},
        is_open=is_open,
        now=NOW,
    )


@dataclass(slots=True)
class World:
    """A pool's simulation. Released devices are free a minute after the request, as with a prompt engine."""

    capacity: int
    teams: Mapping[str, TeamView]
    now: datetime = NOW
    queued: dict[str, QueuedJobView] = field(default_factory=dict)
    holders: dict[str, HolderView] = field(default_factory=dict)
    claims: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, QueuedJobView] = field(default_factory=dict)
    started: dict[str, datetime] = field(default_factory=dict)
    paused: list[tuple[str, str]] = field(default_factory=list)
    """(victim's team, on behalf of whose team)"""

    def submit(self, job: QueuedJobView) -> None:
        self.jobs[job.id] = self.queued[job.id] = replace(job, queued_at=self.now)

    def view(self) -> PoolView:
        return PoolView(
            capacity=self.capacity,
            teams=self.teams,
            holders=tuple(self.holders.values()),
            queued=tuple(self.queued.values()),
            claims=self.claims,
            now=self.now,
        )

    def minute(self) -> Decision:
        self._release()
        view = self.view()
        decision = decide(view)
        check_decision(view, decision)
        self._carry_out(decision)
        self._check()
        self.now += MINUTE
        return decision

    def _release(self) -> None:
        for name, one in list(self.holders.items()):
            over = one.ends_by is not None and one.ends_by <= self.now
            if one.is_leaving or over:
                del self.holders[name]
                if not over:
                    self.queued[name] = self.jobs[name]
            elif one.replicas_leaving:
                self.holders[name] = replace(one, replicas_leaving=0)

    def _carry_out(self, decision: Decision) -> None:
        for admission in decision.admissions:
            self._start(self.queued.pop(admission.job))
        for resize in decision.grants:
            self.holders[resize.job] = replace(self.holders[resize.job], replicas=resize.replicas)
        for resize in decision.reclaims:
            one = self.holders[resize.job]
            left = one.replicas_leaving + one.replicas - resize.replicas
            self.holders[resize.job] = replace(one, replicas=resize.replicas, replicas_leaving=left)
        for preemption in decision.preemptions:
            victim = self.holders[preemption.victim]
            self.paused.append((victim.team, self.jobs[preemption.on_behalf_of].team))
            self.holders[preemption.victim] = replace(victim, is_leaving=True, may_grow=False)
        self.claims = dict(decision.claims)

    def _start(self, job: QueuedJobView) -> None:
        self.started.setdefault(job.id, self.now)
        self.holders[job.id] = HolderView(
            id=job.id,
            team=job.team,
            devices=job.devices,
            since=self.now,
            priority=job.priority,
            preemptible=job.preemptible,
            may_grow=True,
            replica_devices=job.replica_devices,
            most_replicas=job.most_replicas,
            ends_by=self.now + timedelta(seconds=job.max_runtime_s),
        )

    def used(self, team: str) -> int:
        return sum(one.held for one in self.holders.values() if one.team == team)

    def _check(self) -> None:
        """An invariant of every state, independent of the decision."""
        assert sum(one.held for one in self.holders.values()) <= self.capacity
        for name, quota in self.teams.items():
            assert self.used(name) <= quota.ceiling
            firm = sum(one.devices for one in self.holders.values() if one.team == name and not one.preemptible)
            assert firm <= quota.nominal


def check_decision(view: PoolView, decision: Decision) -> None:
    """An invariant of every decision."""
    names = {one.id for one in view.queued}
    assert len(set(decision.admitted)) == len(decision.admitted)
    assert {*decision.admitted} | {*decision.reasons} == names
    assert not {*decision.admitted} & {*decision.reasons}
    assert WaitingReason.NOT_EVALUATED_YET not in decision.reasons.values()
    assert set(decision.claims) <= set(decision.reasons)
    holders = {one.id: one for one in view.holders}
    victims = [preemption.victim for preemption in decision.preemptions]
    assert len(set(victims)) == len(victims)
    assert all(holders[victim].preemptible and not holders[victim].is_leaving for victim in victims)
    assert not {resize.job for resize in decision.reclaims} & {*victims, *(resize.job for resize in decision.grants)}


@st.composite
def quotas(draw: st.DrawFn, capacity: int) -> dict[str, TeamView]:
    """Nominal quotas that together fit the pool."""
    left, quotas_by_team = capacity, {}
    for name in TEAMS:
        nominal = draw(st.integers(0, left))
        left -= nominal
        quotas_by_team[name] = TeamView(
            nominal=nominal,
            borrow_limit=draw(st.none() | st.integers(0, capacity)),
            lend_limit=draw(st.none() | st.integers(0, capacity)),
            weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
        )
    return quotas_by_team


job_views = st.builds(
    QueuedJobView,
    id=st.uuids().map(str),
    team=st.sampled_from((*TEAMS, "without quota")),
    devices=st.integers(1, 10),
    queued_at=st.integers(0, 60).map(lambda minutes: NOW - minutes * MINUTE),
    priority=st.integers(-2, 2),
    preemptible=st.booleans(),
    max_runtime_s=st.integers(1, 40).map(lambda minutes: minutes * 60.0),
    replica_devices=st.integers(1, 2),
    most_replicas=st.integers(0, 3),
)


@st.composite
def worlds(draw: st.DrawFn, minutes: int = 25) -> World:
    """A simulation that has run for a while, with jobs submitted at any minute."""
    capacity = draw(st.integers(1, 12))
    world = World(capacity=capacity, teams=draw(quotas(capacity)))
    arrivals = draw(st.lists(st.tuples(st.integers(0, minutes - 1), job_views), max_size=16))
    for minute in range(minutes):
        for at, one in arrivals:
            if at == minute:
                world.submit(one)
        world.minute()
    return world
