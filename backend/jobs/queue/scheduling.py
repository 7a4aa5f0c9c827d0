"""One round of a pool's scheduler: read, decide, write, all under the pool row's lock.

Invariants:
- rounds of one pool never overlap, so two submissions that race for the last device meet here and one waits;
- reservations, attempt, state and outbox row of an admitted job are written in one transaction: all or none;
- a reason is written only if it changed, so an idle queue costs nothing;
- a round writes a bounded number of jobs and triggers the next round for the rest: however long the queue, each round
  ends well within the time limit of a background task. Starts come before preemptions: a round that could not start
  all admitted jobs preempts none.

Lock order: pool, then budgets, then jobs. A release needs no pool lock: a device with an uncommitted release
counts as held.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction
from django.db.models import F

from backend.jobs.lifecycle import LIVE_CHANNEL
from backend.jobs.models import JobState
from backend.jobs.outbox import enqueue
from backend.jobs.queue.explain import outlook
from backend.jobs.queue.pool_snapshot import PoolSnapshot, read_snapshot
from backend.jobs.queue.preemption import give_replicas, keep_claims, pause_victim, release_overdue, take_replicas
from backend.jobs.queue.starting import start
from backend.jobs.queue.waiting_messages import waiting_message
from backend.pools.decision.decide import ENTRY_PENALTY_S, decide
from backend.pools.decision.views import Decision, WaitingReason
from backend.pools.history import are_stale, write_histories
from backend.pools.models import Reservation, ResourcePool

__all__ = ["outlook", "schedule_pool", "waiting_message"]

log = logging.getLogger(__name__)

# A start writes eight rows, an explanation one: with ten thousand queued a round stays under a second on two cores
# (tests/bench/site/scheduler.py).
MOST_STARTS = 50
MOST_EXPLANATIONS = 1_500
# A page warns if a job was not evaluated for a minute. Every round evaluates all; the times of a longer queue are
# written in turns, oldest first, because ten thousand rows at once take a second.
EVALUATED_EVERY = timedelta(seconds=10)
MOST_EVALUATED = 2_000

_EXPLAIN = """
WITH news AS (
    SELECT * FROM unnest(%(ids)s::text[], %(reasons)s::text[], %(messages)s::text[]) AS n (id, reason, message)
), free AS (
    SELECT j.id FROM jobs_job j WHERE j.id = ANY(%(ids)s) AND j.state = 'queued' FOR NO KEY UPDATE SKIP LOCKED
), changed AS (
    UPDATE jobs_job j
    SET reason = news.reason, message = news.message, cursor = j.cursor + 1, evaluated_at = %(now)s
    FROM news JOIN free USING (id) WHERE j.id = news.id RETURNING j.team_id, j.id, j.cursor
)
SELECT pg_notify(%(channel)s, team_id || ' ' || id || ' ' || cursor) FROM changed
"""
_EVALUATED = """
UPDATE jobs_job SET evaluated_at = %(now)s WHERE id IN (
    SELECT id FROM jobs_job WHERE id = ANY(%(ids)s) AND state = 'queued' FOR NO KEY UPDATE SKIP LOCKED
)
"""


def schedule_pool(pool_id: str, *, now: datetime) -> int:
    """Returns the number of jobs started."""
    with transaction.atomic():
        pool = ResourcePool.objects.select_for_update(of=("self",), no_key=True).filter(pk=pool_id).first()
        if pool is None:
            return 0
        release_overdue(pool, now=now)
        snapshot = read_snapshot(pool, now=now, lock_budgets=True)
        decision = decide(snapshot.view)
        started = _apply(decision, snapshot, pool, now=now)
        news = [(job, reason) for job, reason in decision.reasons.items() if snapshot.waiting[job].reason != reason]
        _explain(news[:MOST_EXPLANATIONS], decision, snapshot, pool, now=now)
        _note_evaluation(snapshot, {job for job, _ in news}, now=now)
        if len(decision.admissions) > MOST_STARTS or len(news) > MOST_EXPLANATIONS:
            enqueue("schedule", pool.pk, now)
    if snapshot.waiting:
        log.info("scheduled pool=%s waiting=%d started=%d", pool.name, len(snapshot.waiting), started)
    return started


def pools_due() -> list[str]:
    """Pools where a round may find work without a message: jobs are queued, or a running one could grow or has not
    answered."""
    waits = ResourcePool.objects.filter(jobs__state=JobState.QUEUED)
    elastic = Reservation.objects.filter(released_at__isnull=True, job__devices__gt=F("job__min_devices"))
    return list(waits.union(ResourcePool.objects.filter(reservations__in=elastic)).values_list("pk", flat=True))


def call_a_round(pool_id: str, now: datetime) -> None:
    """A pool has more devices to give, or its rules changed."""
    enqueue("schedule", pool_id, now)


def _apply(decision: Decision, snapshot: PoolSnapshot, pool: ResourcePool, *, now: datetime) -> int:
    grants = {resize.job: (resize.replicas, resize.borrowed) for resize in decision.grants}
    chosen = decision.admissions[:MOST_STARTS]
    started = {one.job for one in chosen if start(one, pool, grants, now=now)}
    not_yet = set(decision.admitted) - started
    keep_claims(pool, decision.claims, still=not_yet, now=now)
    _note_history(snapshot, started, pool, now=now)
    if len(decision.admissions) > MOST_STARTS:
        return len(started)
    for preemption in decision.preemptions:
        pause_victim(preemption, now=now)
    for resize in decision.reclaims:
        take_replicas(resize, now=now)
    for resize in decision.grants:
        if resize.job not in decision.admitted:
            give_replicas(resize, pool, now=now)
    return len(started)


def _explain(
    news: Sequence[tuple[str, WaitingReason]],
    decision: Decision,
    snapshot: PoolSnapshot,
    pool: ResourcePool,
    *,
    now: datetime,
) -> None:
    """Writes no events: a job in a busy queue would gather hundreds. Only the cursor moves, so that open pages reload.
    A job that is locked at this moment keeps its old reason, so the next round updates it."""
    if not news:
        return
    messages = []
    for job_id, reason in news:
        row = snapshot.waiting[job_id]
        messages.append(
            waiting_message(
                reason,
                devices=row.min_devices,
                pool=pool,
                not_before=row.not_before,
                budget_of=decision.budgets_of.get(job_id, ""),
            )
        )
    with connection.cursor() as db:
        db.execute(
            _EXPLAIN,
            {
                "ids": [job_id for job_id, _ in news],
                "reasons": [str(reason) for _, reason in news],
                "messages": messages,
                "channel": LIVE_CHANNEL,
                "now": now,
            },
        )


def _note_evaluation(snapshot: PoolSnapshot, explained: set[str], *, now: datetime) -> None:
    never, stale = datetime.min.replace(tzinfo=UTC), now - EVALUATED_EVERY
    due = [(row.evaluated_at or never, row.id) for row in snapshot.waiting.values() if row.id not in explained]
    ids = [job_id for at, job_id in sorted(due)[:MOST_EVALUATED] if at <= stale]
    if ids:
        with connection.cursor() as db:
            db.execute(_EVALUATED, {"now": now, "ids": ids})


def _note_history(snapshot: PoolSnapshot, started: set[str], pool: ResourcePool, *, now: datetime) -> None:
    """With the entry penalty of jobs just started; otherwise every few seconds is enough."""
    histories = dict(snapshot.histories)
    for job_id in started:
        row = snapshot.waiting[job_id]
        histories[row.team_id] = histories.get(row.team_id, 0.0) + row.min_devices * ENTRY_PENALTY_S
    if started or (histories and are_stale(pool, now=now)):
        write_histories(pool, histories, now=now)
