"""One round of reconciliation: read, ask each pool's Ray where its word is needed, judge, act.

Invariants:
- Ray is asked outside every transaction; each action is a transaction of its own that first proves the lease and
  that the job and its attempt are still as they were judged;
- a submission is stopped only after such a transaction: a turn of its driver's loop since the verdict saves it;
- at most `MOST_LOST_A_MINUTE` attempts are given up in a minute, over all rounds and processes: when Ray itself has
  lost its memory, or we our senses, most jobs get the benefit of the doubt and the log says so;
- a Ray out of reach is noted, changes nothing, and holds up no pool of another;
- an attempt of before the database was put back is judged only after the facts that its driver has left were read;
- for a time in which no driver could have been heard none is blamed.
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
from backend.reconcile.asking import ask_rays
from backend.reconcile.lease import Lease, prove, reconcile_lease
from backend.reconcile.listening import Door, door_is_open, listening_since
from backend.reconcile.verdicts import Verdict, judge
from backend.reconcile.views import Held, held_jobs

log = logging.getLogger(__name__)

MOST_LOST_A_MINUTE = 10
ASKING_TAKES = 0.5  # of a round, at most: as much is left for what follows from the answers
GIVEN_UP = frozenset({Verdict.ATTEMPT_LOST, Verdict.START_FAILED})
BRAKED = GIVEN_UP | {Verdict.END_STALLED}
ENDS_SUBMISSION = frozenset({Verdict.STOP_SUBMISSION, Verdict.END_STALLED})
SWEEP_LOOKS_BACK = timedelta(days=2)
SWEEP_GRACE = timedelta(seconds=30)  # a driver that finished needs a moment to end

Verdicts = Iterator[tuple[Held, Verdict, SubmissionStatus | None]]


def reconcile(rays: Rays, clock: Clock = database_now, door: Door = door_is_open) -> None:
    with reconcile_lease() as lease:
        if lease is None:
            return
        now = clock()
        jobs = held_jobs(now, listening_since(now, door))
        for held, verdict, status in _braked(_verdicts(jobs, rays, lease, clock), clock):
            log.info("verdict job=%s state=%s verdict=%s ray=%s", held.job.pk, held.job.state, verdict.name, status)
            _act(held, verdict, status, rays=rays, lease=lease, now=clock())


def sweep_zombies(rays: Rays, clock: Clock = database_now) -> None:
    """Submissions that still run although their attempt has ended, or was begun in a time that the database has lost.
    What else we do not know is not ours and stays."""
    now = clock()
    pools = {address_of(pool): pool for pool in ResourcePool.objects.all()}
    for address, pool in pools.items():
        try:
            _sweep(rays(pool), now)
        except LauncherError as error:
            log.warning("ray=%s does not answer, its zombies wait: %s", address, error)


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


def _verdicts(jobs: Iterable[Held], rays: Rays, lease: Lease, clock: Clock) -> Verdicts:
    held_now = list(jobs)
    now = time.monotonic()
    words = ask_rays(held_now, rays, stop_at=now + ASKING_TAKES * (lease.stop_at - now))
    for held in held_now:
        if lease.is_almost_over:
            log.warning("round cut short; the next one goes on")
            return
        status = words.get(held.attempt.submission_id) if held.attempt else None
        if _had_left_facts(held, status, clock()):
            continue  # the next round judges by what they have told
        verdict = judge(held.view, status)
        if verdict is not Verdict.NOTHING:
            yield held, verdict, status


def _had_left_facts(held: Held, status: SubmissionStatus | None, now: datetime) -> bool:
    """Of an attempt that is over, and whose end the database may have lost when it was put back."""
    if held.attempt is None or status is None or status.is_live:
        return False
    return predates_restore(held.attempt) and left_facts()(held.attempt, now)


def _braked(verdicts: Verdicts, clock: Clock) -> Verdicts:
    budget: int | None = None
    for held, verdict, status in verdicts:
        if verdict in BRAKED:
            if budget is None:
                recent = JobAttempt.objects.filter(
                    outcome__in=(LOST, START_FAILED), ended_at__gt=clock() - timedelta(minutes=1)
                )
                budget = MOST_LOST_A_MINUTE - recent.count()
            if budget <= 0:
                log.error("brake: %d attempts lost within a minute; %s waits", MOST_LOST_A_MINUTE, held.job.pk)
                continue
            budget -= 1
        yield held, verdict, status


def _act(
    held: Held, verdict: Verdict, status: SubmissionStatus | None, *, rays: Rays, lease: Lease, now: datetime
) -> None:
    try:
        if _ends_submission(verdict, status):
            with transaction.atomic():
                prove(lease)
                confirm_end(held, verdict, str(status), now)
        last_words = _call_ray(held, verdict, status, rays)
        if last_words is None:
            return
        with transaction.atomic():
            prove(lease)
            _write(held, verdict, status, last_words, now)
    except JobMovedOn as moved:
        log.info("job=%s moved on meanwhile: %s", held.job.pk, moved)


def _ends_submission(verdict: Verdict, status: SubmissionStatus | None) -> bool:
    must_end = verdict in {Verdict.FINISH, Verdict.LAND_PAUSE} and status is not None and status.is_live
    return verdict in ENDS_SUBMISSION or must_end


def _call_ray(held: Held, verdict: Verdict, status: SubmissionStatus | None, rays: Rays) -> str | None:
    """The end of the attempt's log, if the verdict keeps it; None if Ray did not do what the verdict asks."""
    if held.attempt is None:
        return ""
    launcher, submission_id = rays(held.job.pool), held.attempt.submission_id
    try:
        if _ends_submission(verdict, status):
            launcher.stop(submission_id)
        return launcher.log_tail(submission_id, max_chars=2_000) if verdict in GIVEN_UP else ""
    except LauncherError as error:
        log.warning("ray does not answer: %s", error)
        return None if verdict in ENDS_SUBMISSION else ""


def _write(held: Held, verdict: Verdict, status: SubmissionStatus | None, last_words: str, now: datetime) -> None:
    match verdict:
        case Verdict.STILL_ALIVE:
            note_alive(held, now)
        case Verdict.STALLED:
            note_stalled(held, str(status), now)
        case Verdict.MOVES_AGAIN:
            note_moving(held, now)
        case Verdict.LAUNCH_AGAIN:
            launch_again(held, now)
        case Verdict.OUT_OF_TIME:
            run_out_of_time(held, now)
        case Verdict.ATTEMPT_LOST:
            lose_attempt(held, str(status), last_words, now)
        case Verdict.NEXT_ATTEMPT:
            next_attempt(held, now)
        case Verdict.START_FAILED:
            fail_start(held, str(status), last_words, now)
        case Verdict.FINISH:
            finish(held, now)
        case Verdict.LAND_PAUSE:
            land_pause(held, str(status), now)
        case Verdict.STOP_SUBMISSION | Verdict.END_STALLED | Verdict.NOTHING:
            pass
