"""Victims of preemption: the fewest jobs and replicas whose devices are taken back. Pure.

Two kinds of preemption, and no other:
- **reclaim**: the job fits its team's nominal quota, so other teams return devices above theirs;
- **priority** inside a team: a job pauses jobs of its own team with strictly lower priority.
Elastic replicas go first in both kinds; any of its own team, borrowed ones of other teams.

Invariants:
- only preemptible jobs are paused, and not before they have run for MIN_RUNTIME;
- another team loses nothing within its nominal quota (a whole job that goes may be larger than the excess);
- without the victims the job fits; with any one of them kept it would not;
- two teams never take from each other in turn: a reclaiming team is within nominal afterwards, and nothing is taken
  from a team within nominal. An elastic replica moves to another borrower only if that one then borrows strictly less.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from backend.pools.decision.balance import Balance
from backend.pools.decision.views import HolderView, PoolView, QueuedJobView

# A freshly started job is spared: pausing it would waste its start, and starts cost minutes.
MIN_RUNTIME = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One replica of a job, or the whole job."""

    holder: HolderView
    devices: int
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    taken: tuple[Taken, ...]

    @property
    def jobs(self) -> list[str]:
        return [taken.holder.id for taken in self.taken if taken.whole]


@dataclass(slots=True)
class Victims:
    """Jobs that may still lose devices in this round."""

    pool: PoolView
    replicas: dict[str, int] = field(init=False)
    paused: set[str] = field(default_factory=set)
    shrunk: set[str] = field(default_factory=set)
    holders: dict[str, HolderView] = field(init=False)

    def __post_init__(self) -> None:
        self.holders = {one.id: one for one in self.pool.holders if not one.is_leaving}
        self.replicas = {one.id: one.replicas for one in self.holders.values()}

    @property
    def touched(self) -> set[str]:
        return self.paused | self.shrunk

    def replicas_left(self, job: str) -> int:
        return self.replicas[job]

    def remove(self, plan: Plan, balance: Balance) -> None:
        for taken in plan.taken:
            job = taken.holder
            balance.leave(job.team, taken.devices)
            if taken.whole:
                self.paused.add(job.id)
                self.shrunk.discard(job.id)  # the whole job leaves, including replicas already reclaimed
            else:
                self.replicas[job.id] -= 1
                self.shrunk.add(job.id)

    def with_replicas(self) -> list[HolderView]:
        return [one for one in self.holders.values() if self.replicas[one.id] and one.id not in self.paused]

    def pausable(self, now: datetime) -> list[HolderView]:
        return [
            one
            for one in self.holders.values()
            if one.preemptible and one.id not in self.paused and now - one.since >= MIN_RUNTIME
        ]


def plan_preemption(job: QueuedJobView, balance: Balance, victims: Victims, *, now: datetime) -> Plan | None:
    """None: no allowed victims would let the job start. An empty plan: devices already leaving suffice."""
    entitled = balance.is_within_nominal(job)
    if balance.fits_soon(job):
        return Plan(taken=()) if entitled else None
    kinds: list[Callable[[HolderView, Balance], bool]] = []
    if entitled:
        kinds.append(lambda one, books: one.team != job.team and books.borrows_soon(one.team))
    kinds.append(lambda one, _: one.team == job.team and one.priority < job.priority)
    pausable = victims.pausable(now)
    for may_pause in kinds:
        plan = _plan(job, balance, victims, [one for one in pausable if may_pause(one, balance)], may_pause)
        if plan is not None:
            return plan
    return None


def _plan(
    job: QueuedJobView,
    balance: Balance,
    victims: Victims,
    pausable: list[HolderView],
    may_pause: Callable[[HolderView, Balance], bool],
) -> Plan | None:
    if not _would_fit_without_any(job, balance.copy(), victims, pausable):
        return None
    trial = balance.copy()
    taken: list[Taken] = []
    for one in _iterate_victims(job, trial, victims, pausable, may_pause):
        taken.append(one)
        trial.leave(one.holder.team, one.devices)
        if trial.fits_soon(job):
            return Plan(taken=tuple(_spare_unneeded(job, trial, taken)))
    return None


def _would_fit_without_any(job: QueuedJobView, trial: Balance, victims: Victims, pausable: list[HolderView]) -> bool:
    """Removing more never leaves less room, so this finds cases without victims at once."""
    entitled = trial.is_within_nominal(job)
    shrinkable = [one for one in victims.with_replicas() if _may_shrink(one, job, trial, entitled)]
    for one in shrinkable:
        trial.leave(one.team, victims.replicas[one.id] * one.replica_devices)
    already = {one.id for one in shrinkable}
    for one in pausable:
        extra = 0 if one.id in already else victims.replicas[one.id] * one.replica_devices
        trial.leave(one.team, one.devices + extra)
    return trial.fits_soon(job)


def _iterate_victims(
    job: QueuedJobView,
    trial: Balance,
    victims: Victims,
    pausable: list[HolderView],
    may_pause: Callable[[HolderView, Balance], bool],
) -> Iterator[Taken]:
    """Yields the next victim, given the accounts after the previous ones."""
    left = dict(victims.replicas)
    entitled = trial.is_within_nominal(job)
    while True:
        shrinkable = [one for one in victims.with_replicas() if left[one.id] and _may_shrink(one, job, trial, entitled)]
        if not shrinkable:
            break
        loser = max(shrinkable, key=lambda one: (trial.share_soon(one.team), left[one.id], one.since, one.id))
        left[loser.id] -= 1
        yield Taken(holder=loser, devices=loser.replica_devices, whole=False)
    remaining = {one.id: one for one in pausable}
    while remaining:
        candidates = [one for one in remaining.values() if may_pause(one, trial)]
        if not candidates:
            return
        loser = min(
            candidates, key=lambda one: (-trial.share_soon(one.team), one.priority, -one.since.timestamp(), one.id)
        )
        del remaining[loser.id]
        yield Taken(holder=loser, devices=loser.devices + left[loser.id] * loser.replica_devices, whole=True)


def _may_shrink(one: HolderView, job: QueuedJobView, trial: Balance, entitled: bool) -> bool:
    if one.team == job.team:
        return True
    if not trial.borrows_soon(one.team):
        return False
    return entitled or trial.share_soon(one.team) > trial.share_soon(job.team, job.devices)


def _spare_unneeded(job: QueuedJobView, trial: Balance, taken: Iterable[Taken]) -> list[Taken]:
    """Restores victims, last first, while the job still fits."""
    kept = list(taken)
    for one in reversed(list(kept)):
        trial.leave(one.holder.team, -one.devices)
        if trial.fits_soon(job):
            kept.remove(one)
        else:
            trial.leave(one.holder.team, one.devices)
    return kept
