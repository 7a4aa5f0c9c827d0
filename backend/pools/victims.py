"""Victims: the jobs whose devices are taken back, and no more of them than needed. Pure.

Two kinds of preemption, and no other:
- **reclaim**: the job fits its team's nominal quota, so what others hold above theirs is given back;
- **priority** inside a team: a job pauses those of its own team that matter strictly less.
Elastic replicas go first, whichever the kind; of its own team any, of others those that are borrowed.

Invariants:
- only what runs preemptible is paused, and not before it has run for MIN_RUNTIME;
- another team loses nothing that is within its nominal quota (a whole job that goes may be larger than the excess);
- with the victims gone the job fits; with any one of them left alone it would not;
- two teams never take from each other in turn: whoever reclaims is within nominal afterwards, and nothing is taken
  from a team within nominal. An elastic replica goes to another borrower only if that one still borrows strictly less.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from backend.pools.balance import Balance
from backend.pools.views import HolderView, PoolView, QueuedJobView

# A job that was just started is let be: pausing it at once would waste its start, and starts cost minutes.
MIN_RUNTIME = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One replica of a job, or all of the job."""

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
    """The jobs that may still lose something in this round."""

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
                self.shrunk.discard(job.id)  # all of it leaves, the replicas that were asked for before included
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
    """None: no victims that may be taken would let the job start. An empty plan: what is leaving already will do."""
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
    for one in _in_order(job, trial, victims, pausable, may_pause):
        taken.append(one)
        trial.leave(one.holder.team, one.devices)
        if trial.fits_soon(job):
            return Plan(taken=tuple(_no_more_than_needed(job, trial, taken)))
    return None


def _would_fit_without_any(job: QueuedJobView, trial: Balance, victims: Victims, pausable: list[HolderView]) -> bool:
    """More taken is never less room, so this settles the hopeless cases at once."""
    entitled = trial.is_within_nominal(job)
    shrinkable = [one for one in victims.with_replicas() if _may_shrink(one, job, trial, entitled)]
    for one in shrinkable:
        trial.leave(one.team, victims.replicas[one.id] * one.replica_devices)
    already = {one.id for one in shrinkable}
    for one in pausable:
        extra = 0 if one.id in already else victims.replicas[one.id] * one.replica_devices
        trial.leave(one.team, one.devices + extra)
    return trial.fits_soon(job)


def _in_order(
    job: QueuedJobView,
    trial: Balance,
    victims: Victims,
    pausable: list[HolderView],
    may_pause: Callable[[HolderView, Balance], bool],
) -> Iterator[Taken]:
    """The next to lose something, as the books stand after what was taken before."""
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


def _no_more_than_needed(job: QueuedJobView, trial: Balance, taken: Iterable[Taken]) -> list[Taken]:
    """Backwards through the list: whoever can be given back is."""
    kept = list(taken)
    for one in reversed(list(kept)):
        trial.leave(one.holder.team, -one.devices)
        if trial.fits_soon(job):
            kept.remove(one)
        else:
            trial.leave(one.holder.team, one.devices)
    return kept
