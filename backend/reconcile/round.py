"""One round of reconciliation: read, ask Ray where its word is needed, judge, act.

Invariants:
- Ray is asked outside every transaction; each action is a transaction of its own that first proves the lease and
  that the job and its attempt are still as they were judged;
- at most `MOST_LOST_A_MINUTE` attempts are given up in a minute, over all rounds and processes: when Ray itself has
  lost its memory, or we our senses, most jobs get the benefit of the doubt and the log says so;
- Ray out of reach is noted and changes nothing;
- for a time in which no driver could have been heard none is blamed.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from django.db import transaction

from backend.clock import database_now
from backend.jobs.attempts.ending import LOST, START_FAILED
from backend.jobs.attempts.launcher import Launcher, LauncherError, SubmissionStatus
from backend.jobs.models import JobAttempt
from backend.reconcile.actions import (
    JobMovedOn,
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
from backend.reconcile.lease import Lease, prove, reconcile_lease
from backend.reconcile.listening import Door, door_is_open, listening_since
from backend.reconcile.verdicts import Verdict, judge, must_ask
from backend.reconcile.views import Held, held_jobs

log = logging.getLogger(__name__)

MOST_LOST_A_MINUTE = 10
GIVEN_UP = frozenset({Verdict.ATTEMPT_LOST, Verdict.START_FAILED})
BRAKED = GIVEN_UP | {Verdict.END_STALLED}
ENDS_SUBMISSION = frozenset({Verdict.STOP_SUBMISSION, Verdict.END_STALLED})
SWEEP_LOOKS_BACK = timedelta(days=2)
SWEEP_GRACE = timedelta(seconds=30)  # a driver that finished needs a moment to end

Clock = Callable[[], datetime]
Verdicts = Iterator[tuple[Held, Verdict, SubmissionStatus | None]]


def reconcile(launcher: Launcher, clock: Clock = database_now, door: Door = door_is_open) -> None:
    with reconcile_lease() as lease:
        if lease is None:
            return
        now = clock()
        jobs = held_jobs(now, listening_since(now, door))
        for held, verdict, status in _braked(_verdicts(jobs, launcher, lease), clock):
            log.info("verdict job=%s state=%s verdict=%s ray=%s", held.job.pk, held.job.state, verdict.name, status)
            _act(held, verdict, status, launcher=launcher, lease=lease, now=clock())


def sweep_zombies(launcher: Launcher, clock: Clock = database_now) -> None:
    """Submissions that still run although their attempt has ended. What we do not know is not ours and stays."""
    now = clock()
    running = launcher.live_submissions()
    ended = JobAttempt.objects.filter(
        submission_id__in=running, ended_at__lt=now - SWEEP_GRACE, ended_at__gt=now - SWEEP_LOOKS_BACK
    )
    for submission_id in ended.values_list("submission_id", flat=True):
        log.warning("zombie submission=%s stopped", submission_id)
        launcher.stop(submission_id)


def _verdicts(jobs: Iterable[Held], launcher: Launcher, lease: Lease) -> Verdicts:
    unreachable = ""
    for held in jobs:
        if lease.is_almost_over:
            log.warning("round cut short; the next one goes on")
            return
        status = None
        if held.attempt is not None and must_ask(held.view) and not unreachable:
            try:
                status = launcher.status(held.attempt.submission_id)
            except LauncherError as error:
                unreachable = str(error)
                log.warning("ray does not answer, nothing is concluded from that: %s", error)
        verdict = judge(held.view, status)
        if verdict is not Verdict.NOTHING:
            yield held, verdict, status


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
    held: Held, verdict: Verdict, status: SubmissionStatus | None, *, launcher: Launcher, lease: Lease, now: datetime
) -> None:
    last_words = ""
    if held.attempt is not None:
        try:
            must_end = verdict in {Verdict.FINISH, Verdict.LAND_PAUSE} and status is not None and status.is_live
            if verdict in ENDS_SUBMISSION or must_end:
                launcher.stop(held.attempt.submission_id)
            if verdict in GIVEN_UP:
                last_words = launcher.log_tail(held.attempt.submission_id, max_chars=2_000)
        except LauncherError as error:
            log.warning("ray does not answer: %s", error)
            if verdict in ENDS_SUBMISSION:
                return
    try:
        with transaction.atomic():
            prove(lease)
            _write(held, verdict, status, last_words, now)
    except JobMovedOn as moved:
        log.info("job=%s moved on meanwhile: %s", held.job.pk, moved)


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
