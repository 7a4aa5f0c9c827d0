"""The scheduling decision: which jobs start now, and why the others wait. Pure: snapshot in, decision out.

Invariants (tests/backend/test_decide*.py):
- admitted jobs never exceed the pool's capacity, a team's ceiling or what the other teams' reserves leave; a job starts
  whole (trainer and minimum number of replicas) or not at all;
- every job is either admitted or has exactly one reason;
- **the guarantee**: a job that fits its team's unused nominal quota starts after at most one round of reclaiming, since
  devices that others hold above their nominal quota can always be taken back (once used for `MIN_RUNTIME`);
- no job starves. Within a team, priority rises with age past any other; across teams, those that borrow least go first.
  Younger jobs may overtake an older one only until it has waited for BACKFILL_PATIENCE; after that,
  no younger job of its team and no borrower may;
- elastic replicas are granted only when no waiting job could start on those devices.

    across teams: within nominal first, then lowest share, then least history, then oldest
    in a team:    priority + age, then oldest

Shares are compared as they are, not as they would be after the start: else teams with small jobs would always go before
the team with a big one.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from backend.pools.decision.balance import Balance
from backend.pools.decision.elastic import grant_replicas
from backend.pools.decision.victims import Plan, Victims, plan_preemption
from backend.pools.decision.views import (
    Admission,
    Decision,
    HolderView,
    PoolView,
    Preemption,
    QueuedJobView,
    Resize,
    TeamView,
    WaitingReason,
)

__all__ = ["BACKFILL_PATIENCE", "HolderView", "PoolView", "QueuedJobView", "TeamView", "WaitingReason", "decide"]

R = WaitingReason

# Long enough that small jobs fill the gaps while a big one collects its devices, short enough that a stream of small
# jobs delays the big one by minutes and not days.
BACKFILL_PATIENCE = timedelta(minutes=10)
# Points of priority an hour, up to the whole span of priorities (-100..100): a day's wait outranks any priority.
AGEING_PER_HOUR, AGEING_CAP = 10.0, 200.0
# Added to a team's history, per device, when it starts a job: else a hundred quick submissions would all start before
# the first of them counts as used.
ENTRY_PENALTY_S = 600.0
# Reasons of jobs that could use a free device.
_COULD_START = {R.POOL_FULL, R.BACKFILL_HOLD, R.RESERVED_BY_OTHERS, R.PREEMPTION_IN_PROGRESS}
_TEAM_COULD_START = {R.TEAM_CEILING, R.BEHIND_PRIORITY}


def decide(pool: PoolView) -> Decision:
    current = _Round(pool)
    current.serve_claims()
    current.settle_all()
    growing = _list_growing(pool, current) if _no_job_could_start(pool, current) else []
    return Decision(
        admissions=tuple(current.admitted),
        reasons=current.reasons,
        preemptions=tuple(current.preemptions),
        grants=grant_replicas(current.balance, growing, now=pool.now) if growing else (),
        reclaims=tuple(
            Resize(job=job, replicas=current.victims.replicas_left(job)) for job in sorted(current.victims.shrunk)
        ),
        claims=current.claims,
        line=tuple(current.reasons),
        budgets_of=current.budgets_of,
    )


def queue_order(jobs: Iterable[QueuedJobView], now: datetime) -> list[QueuedJobView]:
    """The order within a team."""
    keyed = [(-_age_priority(job, now), job.queued_at, job.id, job) for job in jobs]
    return [job for *_, job in sorted(keyed)]


def _age_priority(job: QueuedJobView, now: datetime) -> float:
    return job.priority + min(AGEING_CAP, (now - job.queued_at).total_seconds() / 3_600 * AGEING_PER_HOUR)


@dataclass(slots=True)
class _Round:
    """A round in progress: what is left, and who may no longer overtake."""

    pool: PoolView
    claims: dict[str, int] = field(init=False)
    balance: Balance = field(init=False)
    victims: Victims = field(init=False)
    waiting: dict[str, QueuedJobView] = field(init=False)
    admitted: list[Admission] = field(default_factory=list)
    reasons: dict[str, WaitingReason] = field(default_factory=dict)
    preemptions: list[Preemption] = field(default_factory=list)
    blocked_teams: set[str] = field(default_factory=set)
    blocks_borrowers: bool = False
    budgets_of: dict[str, str] = field(default_factory=dict)
    without_victims: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By team: (devices, priority) without possible victims; bigger or less urgent jobs have none either."""

    def __post_init__(self) -> None:
        self.waiting = {job.id: job for job in self.pool.queued}
        self.claims = {job: devices for job, devices in self.pool.claims.items() if job in self.waiting}
        self.balance = Balance.of(self.pool, self.claims)
        self.victims = Victims(self.pool)

    def serve_claims(self) -> None:
        """Serves jobs with freed devices first; drops claims that can no longer be fulfilled."""
        for job in queue_order((self.waiting[name] for name in self.claims), self.pool.now):
            devices = self.claims.pop(job.id)
            self.balance.pledge(job.team, -devices)
            if self._ineligible_reason(job) is not None:
                continue
            if self._fits(job):
                self._admit(job)
            elif self.balance.fits_soon(job):
                self._claim(job)

    def settle_all(self) -> None:
        lines: dict[str, list[QueuedJobView]] = {}
        settled = {admission.job for admission in self.admitted} | set(self.reasons)
        for job in self.pool.queued:
            if job.id not in settled:
                lines.setdefault(job.team, []).append(job)
        heads: list[tuple[tuple[bool, float, float, datetime, str], int]] = []
        ordered = [queue_order(jobs, self.pool.now) for _, jobs in sorted(lines.items())]
        places = [0] * len(ordered)
        for index, jobs in enumerate(ordered):
            heads.append((self._key(jobs[0]), index))
        heapq.heapify(heads)
        while heads:
            _, index = heapq.heappop(heads)
            job = ordered[index][places[index]]
            self._settle(job)
            places[index] += 1
            if places[index] < len(ordered[index]):
                heapq.heappush(heads, (self._key(ordered[index][places[index]]), index))

    def _key(self, job: QueuedJobView) -> tuple[bool, float, float, datetime, str]:
        team = self.balance.teams[job.team]
        return (
            not self.balance.is_within_nominal(job),
            self.balance.share(job.team),
            team.usage / team.view.weight,
            job.queued_at,
            job.id,
        )

    def _settle(self, job: QueuedJobView) -> None:
        reason = self._ineligible_reason(job) or self._waiting_reason(job)
        if reason is None:
            self._admit(job)
            return
        if reason in {R.TEAM_CEILING, R.POOL_FULL, R.RESERVED_BY_OTHERS}:
            if self._make_room(job):
                return
            if self.pool.now - job.queued_at >= BACKFILL_PATIENCE:
                self._block_overtaking(job, reason)
        self.reasons[job.id] = reason

    def _ineligible_reason(self, job: QueuedJobView) -> WaitingReason | None:
        """Reasons that hold back no other job."""
        team = self.balance.teams[job.team]
        if job.devices > self.balance.max_devices(job):
            return R.EXCEEDS_MAX
        if not self.pool.is_open:
            return R.POOL_CLOSED
        if self.pool.in_maintenance:
            return R.MAINTENANCE
        if job.lacks_sandbox:
            return R.NO_SANDBOX
        if job.not_before is not None and job.not_before > self.pool.now:
            return R.BACKOFF_UNTIL
        if team.budget_left is not None and job.devices * job.max_runtime_s > team.budget_left:
            return R.BUDGET
        short = self.balance.exceeded_limit(job.draws_on, job.devices * job.max_runtime_s)
        if short is not None:
            self.budgets_of[job.id] = self.pool.limits[short].label
            return R.BUDGET
        return None

    def _waiting_reason(self, job: QueuedJobView) -> WaitingReason | None:
        if not self.balance.has_quota(job):
            return R.BEHIND_PRIORITY if job.team in self.blocked_teams else R.TEAM_CEILING
        if job.team in self.blocked_teams:
            return R.BEHIND_PRIORITY
        if not self.balance.has_free(job.team, job.devices):
            return R.RESERVED_BY_OTHERS if job.devices <= self.balance.free else R.POOL_FULL
        if self.blocks_borrowers and not self.balance.is_within_nominal(job):
            return R.BACKFILL_HOLD
        return None

    def _fits(self, job: QueuedJobView) -> bool:
        return self.balance.has_quota(job) and self.balance.has_free(job.team, job.devices)

    def _admit(self, job: QueuedJobView) -> None:
        team = self.balance.teams[job.team]
        borrowed = self.balance.take(job.team, job.devices, firm=not job.preemptible)
        team.usage += job.devices * ENTRY_PENALTY_S
        if team.budget_left is not None:
            team.budget_left -= job.devices * job.max_runtime_s
        self.balance.pay(job.draws_on, job.devices * job.max_runtime_s)
        self.admitted.append(Admission(job=job.id, borrowed=borrowed))

    def _claim(self, job: QueuedJobView) -> None:
        self.claims[job.id] = job.devices
        self.balance.pledge(job.team, job.devices)
        self.reasons[job.id] = R.PREEMPTION_IN_PROGRESS

    def _make_room(self, job: QueuedJobView) -> bool:
        """Plans a preemption for the job, if one lets it start soon."""
        failed = self.without_victims.setdefault(job.team, [])
        if job.team in self.blocked_teams or any(job.devices >= size and job.priority <= rank for size, rank in failed):
            return False
        plan = plan_preemption(job, self.balance, self.victims, now=self.pool.now)
        if plan is None:
            failed.append((job.devices, job.priority))
            return False
        self._carry_out(plan, job)
        return True

    def _carry_out(self, plan: Plan, job: QueuedJobView) -> None:
        self.victims.remove(plan, self.balance)
        self.preemptions += [Preemption(victim=victim, on_behalf_of=job.id) for victim in plan.jobs]
        self._claim(job)

    def _block_overtaking(self, job: QueuedJobView, reason: WaitingReason) -> None:
        """Lets no borrower overtake the job, nor its own team where the team's own use is in the way: a team keeps its
        guarantee while its job waits for devices that others use rightfully."""
        if reason is R.TEAM_CEILING:
            self.blocked_teams.add(job.team)
            return
        self.blocks_borrowers = True
        balance = self.balance
        by_others = balance.used - balance.teams[job.team].used + balance.reserved_by_others(job.team)
        if balance.is_within_nominal(job) or job.devices <= balance.capacity - by_others:
            self.blocked_teams.add(job.team)


def _no_job_could_start(pool: PoolView, current: _Round) -> bool:
    return pool.is_open and not pool.in_maintenance and not _COULD_START & set(current.reasons.values())


def _list_growing(pool: PoolView, current: _Round) -> list[HolderView]:
    """Jobs that may get more replicas: undisturbed running jobs, and those that start in this round."""
    touched = current.victims.touched
    stuck = {current.waiting[job].team for job, reason in current.reasons.items() if reason in _TEAM_COULD_START}
    running = [one for one in pool.holders if one.may_grow and not one.is_leaving and one.id not in touched]
    starting = [
        HolderView(
            id=job.id,
            team=job.team,
            devices=job.devices,
            since=pool.now,
            may_grow=True,
            replica_devices=job.replica_devices,
            most_replicas=job.most_replicas,
            ends_by=pool.now + timedelta(seconds=job.max_runtime_s),
            draws_on=job.draws_on,
        )
        for job in (current.waiting[admission.job] for admission in current.admitted)
    ]
    return [one for one in (*running, *starting) if one.replicas < one.most_replicas and one.team not in stuck]
