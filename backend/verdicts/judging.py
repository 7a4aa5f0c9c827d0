"""Judges jobs as their news arrive: renews the verdict and records an event when an alarm begins or ends.

    news of a job ─▶ its cursor moves ─▶ within a tick: observe ─▶ rules ─▶ row, events ─NOTIFY─▶ pages, webhooks, mail

Invariants:
- events and row are written in one transaction under the job's lock, and only if the row is unchanged since the read:
  of two concurrent judges only one writes;
- series are read without the lock, so that facts do not wait;
- a job whose numbers no rule was written for neither stops nor keeps delaying the judging of others;
- a job that has ended raises no alarm events: its end is an event itself, and its page keeps the last verdict.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import zip_longest
from typing import Final

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q

from backend.jobs.lifecycle import locked_job, next_cursor, record_event
from backend.jobs.models import Job, JobAttempt, JobState
from backend.verdicts.findings import FindingOut, findings_out
from backend.verdicts.letters import mail_alarm
from backend.verdicts.models import JobVerdict
from backend.verdicts.observations import observed_of, stepped_at
from backend.verdicts.rules.finding import label_of_kind
from backend.verdicts.rules.judging import judge

log = logging.getLogger(__name__)

ACTOR: Final = "verdict"
RAISED: Final = "alarm_raised"
ENDED: Final = "alarm_ended"
JUDGE_AGAIN_AFTER: Final = timedelta(seconds=30)  # for a running job without news: stall limits are minutes
AT_ONCE: Final = 500


def judge_due(*, now: datetime, has_time: Callable[[], bool] = lambda: True) -> int:
    """Returns the number of jobs judged, oldest verdict first. Out of time, it leaves the rest to the next tick."""
    num = 0
    for job_id in _due(now):
        if not has_time():
            break
        try:
            judge_job(Job.objects.get(pk=job_id), now=now)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            log.exception("cannot be judged job=%s", job_id)
            JobVerdict.objects.filter(job_id=job_id).update(judged_at=now)  # behind the others
        num += 1
    return num


def judge_job(job: Job, *, now: datetime) -> None:
    """`job` must be freshly read from the database."""
    before = JobVerdict.objects.filter(job=job).first()
    run = observed_of(job, before, now=now)
    found = findings_out(judge(run), run)
    stored = [each.model_dump(mode="json") for each in found]
    with transaction.atomic():
        locked = locked_job(job.pk)
        if _moment(JobVerdict.objects.filter(job=job).first()) != _moment(before):
            return  # another judge was faster
        has_news = locked.cursor != job.cursor  # news since the read: judge again
        if not job.is_terminal:
            _record_alarms(locked, before.alarms if before else [], found, now=now)
        if before is None or before.found != stored:
            next_cursor(locked)  # makes open pages reload
        JobVerdict.objects.update_or_create(
            job=locked,
            defaults={
                "cursor": job.cursor if has_news else locked.cursor,
                "judged_at": now,
                "step": job.step,
                "stepped_at": stepped_at(job, before, now=now),
                "kind": found[0].kind,
                "found": stored,
                "alarms": [each.kind for each in found if each.tone == "alarm"],
                "is_final": job.is_terminal,
            },
        )


def _due(now: datetime) -> list[str]:
    """Running jobs never judged, in random order, in turn with those that have news or are silent for long. Queried via
    live attempts and non-final verdicts, both few however many jobs there were."""
    live = JobAttempt.objects.filter(ended_at__isnull=True, job__steps__gt=0, job__started_at__isnull=False)
    new = live.filter(~Exists(JobVerdict.objects.filter(job=OuterRef("job"))))
    has_news = Q(cursor__lt=F("job__cursor"))
    is_silent = Q(job__state=JobState.RUNNING, judged_at__lt=now - JUDGE_AGAIN_AFTER)
    known = JobVerdict.objects.filter(has_news | is_silent, is_final=False).order_by("judged_at")
    ids = [rows.values_list("job_id", flat=True)[:AT_ONCE] for rows in (new.order_by("?"), known)]
    return [job_id for pair in zip_longest(*ids) for job_id in pair if job_id is not None]


def _record_alarms(job: Job, before: Sequence[str], found: Sequence[FindingOut], *, now: datetime) -> None:
    active = {each.kind: each for each in found if each.tone == "alarm"}
    for kind, alarm in active.items():
        if kind not in before:
            data = {"kind": kind, "step": job.step, "series": [each.series for each in alarm.evidence]}
            data["remedy"] = alarm.remedy
            record_event(job, RAISED, actor=ACTOR, now=now, reason=kind, message=alarm.sentence, data=data)
            log.info("alarm raised job=%s kind=%s step=%d", job.pk, kind, job.step)
            transaction.on_commit(partial(mail_alarm, job, alarm), robust=True)
    for kind in before:
        if kind not in active:
            message = f"No longer: {label_of_kind(kind)}."
            record_event(job, ENDED, actor=ACTOR, now=now, reason=kind, message=message, data={"kind": kind})
            log.info("alarm ended job=%s kind=%s step=%d", job.pk, kind, job.step)


def _moment(row: JobVerdict | None) -> datetime | None:
    return row.judged_at if row else None
