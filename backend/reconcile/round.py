"""One round of reconciliation: read, query each pool's Ray where necessary, judge, act.

Invariants:
- Ray is called outside every transaction; each action is a transaction of its own that first proves the lease and that
  the job and its attempt are unchanged since they were judged;
- a submission is stopped only after such a transaction: a turn of its driver's loop since the job was judged saves it;
- at most `MOST_LOST_A_MINUTE` attempts are given up per minute, over all rounds and processes: if Ray itself forgot its
  jobs, or reconciliation errs, most jobs are spared and the log reports it;
- an unreachable Ray is logged, changes nothing, and delays no pool of another Ray;
- an attempt begun before a restore is judged only after the facts that its driver left were read;
- time in which no driver could reach the site counts against none.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from django.db import transaction

from backend.clock import Clock, database_now
from backend.jobs.attempts.ending import LOST, START_FAILED
from backend.jobs.attempts.launcher import Launcher, Rays, SubmissionStatus
from backend.jobs.generation.left_behind import left_facts, orphaned_submissions, predates_restore
from backend.jobs.models import JobAttempt
from backend.pools.clusters.addresses import address_of
from backend.pools.clusters.dashboard import LauncherError
from backend.pools.models import ResourcePool
from backend.reconcile.actions import (
    JobMovedOn,
    confirm_end,
    fail_start,
    finish,
    land_pause,
    launch_again,
    lose_attempt,
    next_attempt,
    note_alive,
    note_moving,
    note_stalled,
    run_out_of_time,
)
from backend.reconcile.judging import Action, judge
from backend.reconcile.lease import Lease, prove, reconcile_lease
from backend.reconcile.listening import Probe, listening_since, site_is_reachable
from backend.reconcile.ray_statuses import query_rays
from backend.reconcile.views import Held, held_jobs

log = logging.getLogger(__name__)

MOST_LOST_A_MINUTE = 10
ASKING_TAKES = 0.5  # of a round, at most: the rest is for acting on the answers
GIVEN_UP = frozenset({Action.ATTEMPT_LOST, Action.START_FAILED})
BRAKED = GIVEN_UP | {Action.END_STALLED}
ENDS_SUBMISSION = frozenset({Action.STOP_SUBMISSION, Action.END_STALLED})
SWEEP_LOOKS_BACK = timedelta(days=2)
SWEEP_GRACE = timedelta(seconds=30)  # a finished driver needs a moment to exit

Actions = Iterator[tuple[Held, Action, SubmissionStatus | None]]


def reconcile(rays: Rays, clock: Clock = database_now, probe: Probe = site_is_reachable) -> None:
    with reconcile_lease() as lease:
        if lease is None:
            return
        now = clock()
        jobs = held_jobs(now, listening_since(now, probe))
        for held, action, status in _limit_losses(_actions(jobs, rays, lease, clock), clock):
            log.info("action job=%s state=%s action=%s ray=%s", held.job.pk, held.job.state, action.name, status)
            _act(held, action, status, rays=rays, lease=lease, now=clock())


def sweep_zombies(rays: Rays, clock: Clock = database_now) -> None:
    """Stops submissions that still run although their attempt has ended or belongs to the lost time of a restore. Other
    unknown submissions are not ours and stay."""
    now = clock()
    pools = {address_of(pool): pool for pool in ResourcePool.objects.all()}
    for address, pool in pools.items():
        try:
            _sweep(rays(pool), now)
        except LauncherError as error:
            log.warning("ray=%s does not respond, zombies not swept: %s", address, error)


def _sweep(launcher: Launcher, now: datetime) -> None:
    running = launcher.live_submissions()
    ended = JobAttempt.objects.filter(
        submission_id__in=running, ended_at__lt=now - SWEEP_GRACE, ended_at__gt=now - SWEEP_LOOKS_BACK
    )
    for submission_id in ended.values_list("submission_id", flat=True):
        log.warning("zombie submission=%s stopped", submission_id)
        launcher.stop(submission_id)
    for submission_id in orphaned_submissions(running):
        log.warning("zombie of the lost time submission=%s stopped", submission_id)
        launcher.stop(submission_id)


def _actions(jobs: Iterable[Held], rays: Rays, lease: Lease, clock: Clock) -> Actions:
    held_now = list(jobs)
    now = time.monotonic()
    statuses = query_rays(held_now, rays, stop_at=now + ASKING_TAKES * (lease.stop_at - now))
    for held in held_now:
        if lease.is_almost_over:
            log.warning("round cut short; the next one continues")
            return
        status = statuses.get(held.attempt.submission_id) if held.attempt else None
        if _store_left_facts(held, status, clock()):
            continue  # the next round judges by these facts
        action = judge(held.view, status)
        if action is not Action.NOTHING:
            yield held, action, status


def _store_left_facts(held: Held, status: SubmissionStatus | None, now: datetime) -> bool:
    """Reads the facts of an ended attempt whose end the restored database may lack. True if there were any."""
    if held.attempt is None or status is None or status.is_live:
        return False
    return predates_restore(held.attempt) and left_facts()(held.attempt, now)


def _limit_losses(actions: Actions, clock: Clock) -> Actions:
    budget: int | None = None
    for held, action, status in actions:
        if action in BRAKED:
            if budget is None:
                recent = JobAttempt.objects.filter(
                    outcome__in=(LOST, START_FAILED), ended_at__gt=clock() - timedelta(minutes=1)
                )
                budget = MOST_LOST_A_MINUTE - recent.count()
            if budget <= 0:
                log.error("brake: %d attempts lost within a minute; job=%s waits", MOST_LOST_A_MINUTE, held.job.pk)
                continue
            budget -= 1
        yield held, action, status


def _act(
    held: Held, action: Action, status: SubmissionStatus | None, *, rays: Rays, lease: Lease, now: datetime
) -> None:
    try:
        if _ends_submission(action, status):
            with transaction.atomic():
                prove(lease)
                confirm_end(held, action, str(status), now)
        log_tail = _call_ray(held, action, status, rays)
        if log_tail is None:
            return
        with transaction.atomic():
            prove(lease)
            _write(held, action, status, log_tail, now)
    except JobMovedOn as moved:
        log.info("job=%s changed since it was judged: %s", held.job.pk, moved)


def _ends_submission(action: Action, status: SubmissionStatus | None) -> bool:
    must_end = action in {Action.FINISH, Action.LAND_PAUSE} and status is not None and status.is_live
    return action in ENDS_SUBMISSION or must_end


def _call_ray(held: Held, action: Action, status: SubmissionStatus | None, rays: Rays) -> str | None:
    """Returns the end of the attempt's log if the action stores it; None if Ray did not carry the action out."""
    if held.attempt is None:
        return ""
    launcher, submission_id = rays(held.job.pool), held.attempt.submission_id
    try:
        if _ends_submission(action, status):
            launcher.stop(submission_id)
        return launcher.log_tail(submission_id, max_chars=2_000) if action in GIVEN_UP else ""
    except LauncherError as error:
        log.warning("ray does not respond: %s", error)
        return None if action in ENDS_SUBMISSION else ""


def _write(held: Held, action: Action, status: SubmissionStatus | None, log_tail: str, now: datetime) -> None:
    match action:
        case Action.STILL_ALIVE:
            note_alive(held, now)
        case Action.STALLED:
            note_stalled(held, str(status), now)
        case Action.MOVES_AGAIN:
            note_moving(held, now)
        case Action.LAUNCH_AGAIN:
            launch_again(held, now)
        case Action.OUT_OF_TIME:
            run_out_of_time(held, now)
        case Action.ATTEMPT_LOST:
            lose_attempt(held, str(status), log_tail, now)
        case Action.NEXT_ATTEMPT:
            next_attempt(held, now)
        case Action.START_FAILED:
            fail_start(held, str(status), log_tail, now)
        case Action.FINISH:
            finish(held, now)
        case Action.LAND_PAUSE:
            land_pause(held, str(status), now)
        case Action.STOP_SUBMISSION | Action.END_STALLED | Action.NOTHING:
            pass
