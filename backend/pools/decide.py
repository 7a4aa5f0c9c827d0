"""Who starts now, and why the others wait. Pure: snapshot in, verdict out.

Invariants (tests/backend/test_decide.py):
- what is admitted never exceeds the pool's capacity or a team's nominal quota; a job starts whole or not at all;
- every job is either admitted or has exactly one reason;
- nobody starves: jobs are looked at oldest first, and younger ones may overtake only while the one that they overtake
  has waited less than BACKFILL_PATIENCE. Then the line is held for it: within its team while its team's quota is what
  it waits for, in the whole pool once only devices are missing. What runs ends, so its turn comes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

# Long enough that small jobs fill the gaps while a big one gathers its devices, short enough that a stream of small
# jobs costs the big one minutes and not days.
BACKFILL_PATIENCE = timedelta(minutes=10)


class WaitingReason(StrEnum):
    """Closed list: a page and a program can know them all."""

    NOT_EVALUATED_YET = "not_evaluated_yet"  # no round has looked at the job; `decide` never gives it
    EXCEEDS_MAX = "exceeds_max"  # more than the pool has, or than the team may ever use there
    TEAM_CEILING = "team_ceiling"  # the team's quota is in use
    BEHIND_PRIORITY = "behind_priority"  # the team's quota is being kept for an older job of the team
    POOL_FULL = "pool_full"  # not enough devices are free
    BACKFILL_HOLD = "backfill_hold"  # enough are free, but they are being kept for an older, bigger job


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJobView:
    id: str
    team: str
    devices: int
    queued_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """`used` and `nominal` by team id; `queued` in the order of the line, oldest first."""

    capacity: int
    used: Mapping[str, int]
    nominal: Mapping[str, int]
    queued: Sequence[QueuedJobView]
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    admitted: tuple[str, ...]
    reasons: Mapping[str, WaitingReason]


@dataclass(slots=True)
class _Round:
    """What is left while the line is walked, and for whom it is being kept."""

    capacity: int
    nominal: Mapping[str, int]
    used: dict[str, int]
    held_teams: set[str] = field(default_factory=set)
    held_pool: bool = False

    @property
    def free(self) -> int:
        return self.capacity - sum(self.used.values())

    def team_room(self, team: str) -> int:
        return self.nominal.get(team, 0) - self.used.get(team, 0)

    def reason_to_wait(self, job: QueuedJobView) -> WaitingReason | None:
        if job.devices > min(self.capacity, self.nominal.get(job.team, 0)):
            return WaitingReason.EXCEEDS_MAX
        if job.devices > self.team_room(job.team):
            return WaitingReason.TEAM_CEILING
        if job.team in self.held_teams:
            return WaitingReason.BEHIND_PRIORITY
        if job.devices > self.free:
            return WaitingReason.POOL_FULL
        if self.held_pool:
            return WaitingReason.BACKFILL_HOLD
        return None

    def hold_the_line_for(self, job: QueuedJobView, reason: WaitingReason) -> None:
        if reason is WaitingReason.TEAM_CEILING:
            self.held_teams.add(job.team)
        elif reason is WaitingReason.POOL_FULL:
            self.held_pool = True


def decide(pool: PoolView) -> Verdict:
    state = _Round(capacity=pool.capacity, nominal=pool.nominal, used=dict(pool.used))
    admitted: list[str] = []
    reasons: dict[str, WaitingReason] = {}
    for job in in_line(pool.queued):
        reason = state.reason_to_wait(job)
        if reason is None:
            state.used[job.team] = state.used.get(job.team, 0) + job.devices
            admitted.append(job.id)
            continue
        reasons[job.id] = reason
        if pool.now - job.queued_at >= BACKFILL_PATIENCE:
            state.hold_the_line_for(job, reason)
    return Verdict(admitted=tuple(admitted), reasons=reasons)


def in_line(jobs: Iterable[QueuedJobView]) -> list[QueuedJobView]:
    return sorted(jobs, key=lambda job: (job.queued_at, job.id))
