"""Forecasts of start times: `decide` on changed inputs. Pure, like `decide`.

A forecast assumes that every running job takes its maximum runtime and no new job is submitted. Jobs usually end
sooner, so it is rather too late than too early; a new job of higher rank can still delay a start.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from backend.pools.decision.decide import decide
from backend.pools.decision.victims import MIN_RUNTIME
from backend.pools.decision.views import Decision, HolderView, PoolView, QueuedJobView

# Most rounds of one forecast, and most jobs in all its rounds together: a page waits for it.
MOST_ROUNDS, MOST_LOOKS = 60, 60_000
DRAINED_AFTER = timedelta(minutes=1)
"""Approximate time until reclaimed devices are free."""


def only_ahead_of(view: PoolView, job_id: str, decision: Decision) -> PoolView:
    """Drops jobs further back in the line, which do not affect this job."""
    ahead = set(decision.admitted)
    for name in decision.line:
        ahead.add(name)
        if name == job_id:
            break
    return replace(view, queued=[job for job in view.queued if job.id in ahead])


def would_start(view: PoolView, job: QueuedJobView) -> bool:
    """Whether `job`, in place of the queued job with its id, would start now."""
    queued = [job if other.id == job.id else other for other in view.queued]
    return job.id in decide(replace(view, queued=queued)).admitted


def largest_that_starts(view: PoolView, job: QueuedJobView, sizes: Sequence[int]) -> int | None:
    """The largest of the ascending sizes with which the job would start now."""
    low, high, best = 0, len(sizes) - 1, None
    while low <= high:
        middle = (low + high) // 2
        if would_start(view, replace(job, devices=sizes[middle])):
            best, low = sizes[middle], middle + 1
        else:
            high = middle - 1
    return best


def starts_at(view: PoolView, job_id: str) -> datetime | None:
    """None: not within the rounds that are simulated."""
    for _ in range(max(5, min(MOST_ROUNDS, MOST_LOOKS // max(1, len(view.queued))))):
        decision = decide(view)
        if job_id in decision.admitted:
            return view.now
        view = _apply(view, decision)
        following = _next_moment(view)
        if following is None:
            return None
        view = _advance(view, following)
    return None


def _apply(view: PoolView, decision: Decision) -> PoolView:
    admitted = set(decision.admitted)
    paused = {one.victim for one in decision.preemptions}
    shrunk = {one.job: one.replicas for one in decision.reclaims}
    drained = view.now + DRAINED_AFTER
    holders = [_release(one, paused, shrunk, drained) for one in view.holders]
    holders += [_make_holder(job, view.now) for job in view.queued if job.id in admitted]
    queued = [job for job in view.queued if job.id not in admitted]
    return replace(view, holders=holders, queued=queued, claims=decision.claims)


def _release(one: HolderView, paused: set[str], shrunk: dict[str, int], drained: datetime) -> HolderView:
    if one.id in paused:
        return replace(one, is_leaving=True, may_grow=False, ends_by=drained)
    if one.id in shrunk:
        left = one.replicas_leaving + one.replicas - shrunk[one.id]
        return replace(one, replicas=shrunk[one.id], replicas_leaving=left)
    return one


def _make_holder(job: QueuedJobView, now: datetime) -> HolderView:
    return HolderView(
        id=job.id,
        team=job.team,
        devices=job.devices,
        since=now,
        priority=job.priority,
        preemptible=job.preemptible,
        replica_devices=job.replica_devices,
        ends_by=now + timedelta(seconds=job.max_runtime_s),
        draws_on=job.draws_on,
    )


def _next_moment(view: PoolView) -> datetime | None:
    """The next moment at which an input of the decision changes without an event."""
    moments = [one.ends_by for one in view.holders if one.ends_by is not None]
    moments += [one.since + MIN_RUNTIME for one in view.holders if one.preemptible]
    moments += [job.not_before for job in view.queued if job.not_before is not None]
    if any(one.is_leaving or one.replicas_leaving for one in view.holders):
        moments.append(view.now + DRAINED_AFTER)
    return min((moment for moment in moments if moment > view.now), default=None)


def _advance(view: PoolView, moment: datetime) -> PoolView:
    """The view at a later moment: leaving jobs and those at their maximum runtime are gone."""
    holders = [
        replace(one, replicas_leaving=0)
        for one in view.holders
        if not one.is_leaving and (one.ends_by is None or one.ends_by > moment)
    ]
    return replace(view, holders=holders, now=moment)
