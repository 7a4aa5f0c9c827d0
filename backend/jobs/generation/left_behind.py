"""What attempts of the lost time have left behind: folders, facts that the database has lost, submissions.

    an attempt that the database knows     its driver sends what is missing by itself; where it is over: `left_facts`
    one begun in the lost time             `begun_before`: it is taken up under its own fence, not begun twice
    one that nobody will take up           `of_nobody`: it is stopped

Invariants:
- folders are the nodes' to write: a name there is believed for its own job only, and only below the generation, which
  no fence of the lost time reaches;
- what bears neither this installation's name nor the id of a job of ours is not ours, and stays.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from django.conf import settings

from backend.jobs.generation.raising import generation_number
from backend.jobs.models import HOLDING_STATES, Generation, Job, JobAttempt, JobState
from backend.ports import Port
from engine.spec.fact_segments import SPOOL_FOLDER, has_segments

LeftFacts = Callable[[JobAttempt, datetime], bool]
left_facts: Port[LeftFacts] = Port("the facts that a driver left in its folder")
"""Stores those that are missing: was there any? They are telemetry's, which is above jobs and fills this."""

_SUBMISSION = re.compile(r"(job_[0-9A-Za-z_]+)-([0-9]{1,9})-([0-9]{1,10})-([0-9a-f]{8})")
_GOING_ON: Final = frozenset({*HOLDING_STATES, JobState.QUEUED, JobState.VALIDATING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    id: str
    job: str
    attempt: int
    fence: int
    site: str
    """The first digits of the installation's id."""


def submission_id(job: str, n: int, fence: int, *, site: str) -> str:
    return f"{job}-{n}-{fence}-{site[:8]}"


def spool_of(job: str, n: int, fence: int) -> Path:
    """The folder of its segments."""
    return Path(settings.ENVIRONMENT.store_dir) / "jobs" / job / f"attempt-{n}-fence-{fence}" / SPOOL_FOLDER


def is_of_before(attempt: JobAttempt) -> bool:
    """Begun before the database was put back; so the lost time may hold more of it."""
    return attempt.fence < generation_number()


def was_begun(attempt: JobAttempt) -> bool:
    """By a driver, although the database does not know that it was launched."""
    return is_of_before(attempt) and has_segments(spool_of(attempt.job_id, attempt.n, attempt.fence))


def begun_before(job: Job, n: int, generation: int) -> int | None:
    """The fence of this attempt, if the lost time has begun it."""
    if job.fence >= generation:
        return None
    home = spool_of(job.pk, n, 0).parents[1]
    found = (re.fullmatch(r"attempt-[0-9]+-fence-([0-9]{1,10})", path.name) for path in home.glob(f"attempt-{n}-*"))
    fences = [int(match[1]) for match in found if match is not None]
    lost = [fence for fence in fences if job.fence < fence < generation and has_segments(spool_of(job.pk, n, fence))]
    return max(lost, default=None)


def of_nobody(live: Iterable[str]) -> list[str]:
    """Of these submissions, those of the lost time that no attempt will ever be."""
    row = Generation.objects.filter(pk=1).first()
    if row is None or not row.number:
        return []
    known = set(JobAttempt.objects.filter(submission_id__in=list(live)).values_list("submission_id", flat=True))
    unknown = [_parsed(name) for name in live if name not in known]
    ours = [one for one in unknown if one is not None and one.site == row.site[:8]]
    jobs = Job.objects.in_bulk({one.job for one in ours})
    return [one.id for one in ours if _is_of_nobody(one, jobs.get(one.job), row.number)]


def _is_of_nobody(one: Submission, job: Job | None, generation: int) -> bool:
    if job is None:
        return True  # submitted in the lost time
    may_be_taken_up = one.attempt > job.num_attempts and job.fence < one.fence < generation
    return not (may_be_taken_up and job.state in _GOING_ON)


def _parsed(name: str) -> Submission | None:
    found = _SUBMISSION.fullmatch(name)
    if found is None:
        return None
    job, attempt, fence, site = found.groups()
    return Submission(id=name, job=job, attempt=int(attempt), fence=int(fence), site=site)
