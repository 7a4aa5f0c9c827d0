"""Leftovers of attempts in the time that a restored database lost: folders, missing facts, submissions.

    an attempt that the database knows     its driver resends what is missing; if it has ended: `left_facts`
    an attempt begun in the lost time      `adoptable_fence`: it is adopted with its own fence, not begun twice
    an attempt that cannot be adopted      `orphaned_submissions`: it is stopped

Invariants:
- nodes write the folders: a name there is trusted for its own job only, and only below the generation, which no fence
  of the lost time reaches;
- submissions with neither this installation's name nor the id of one of its jobs are not ours, and stay untouched.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final

from django.conf import settings

from backend.jobs.generation.raising import generation_number
from backend.jobs.models import HOLDING_STATES, Generation, Job, JobAttempt, JobState
from backend.ports import Port
from engine.spec.fact_segments import MOST_ENTRIES, NO_FOLDER, SPOOL_FOLDER, has_segments

LeftFacts = Callable[[JobAttempt, datetime], bool]
left_facts: Port[LeftFacts] = Port("the facts that a driver left in its folder")
"""Stores the missing facts and returns whether there were any. Telemetry, a layer above, provides it."""

_SUBMISSION = re.compile(r"(job_[0-9A-Za-z_]+)-([0-9]{1,9})-([0-9]{1,10})-([0-9a-f]{8})")
_ATTEMPT_FOLDER = re.compile(r"attempt-([0-9]{1,9})-fence-([0-9]{1,10})", re.ASCII)
_UNFINISHED: Final = frozenset({*HOLDING_STATES, JobState.QUEUED, JobState.VALIDATING})


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
    """The folder of the attempt's fact segments."""
    return Path(settings.ENVIRONMENT.store_dir) / "jobs" / job / f"attempt-{n}-fence-{fence}" / SPOOL_FOLDER


def predates_restore(attempt: JobAttempt) -> bool:
    """Begun before the restore, so facts of it may be missing."""
    return attempt.fence < generation_number()


def has_unknown_driver(attempt: JobAttempt) -> bool:
    """True if its driver started in the lost time, although the database does not know of the launch."""
    return predates_restore(attempt) and has_segments(spool_of(attempt.job_id, attempt.n, attempt.fence))


def adoptable_fence(job: Job, n: int, generation: int) -> int | None:
    """The fence of this attempt if it was begun in the lost time."""
    if job.fence >= generation:
        return None
    home = spool_of(job.pk, n, 0).parents[1]
    lost = (fence for fence in _fences_left(home, n) if job.fence < fence < generation)
    return next((fence for fence in sorted(lost, reverse=True) if has_segments(spool_of(job.pk, n, fence))), None)


def _fences_left(home: Path, n: int) -> Sequence[int]:
    """The fences in the names of this attempt's folders, of the first `MOST_ENTRIES` names."""
    try:
        with os.scandir(home) as entries:
            matches = [_ATTEMPT_FOLDER.fullmatch(entry.name) for entry in islice(entries, MOST_ENTRIES)]
    except OSError as error:
        if error.errno not in NO_FOLDER:
            raise
        return ()
    return [int(match[2]) for match in matches if match is not None and int(match[1]) == n]


def orphaned_submissions(live: Iterable[str]) -> list[str]:
    """Submissions of the lost time that no attempt will ever adopt."""
    row = Generation.objects.filter(pk=1).first()
    if row is None or not row.number:
        return []
    known = set(JobAttempt.objects.filter(submission_id__in=list(live)).values_list("submission_id", flat=True))
    unknown = [_parse(name) for name in live if name not in known]
    ours = [each for each in unknown if each is not None and each.site == row.site[:8]]
    jobs = Job.objects.in_bulk({each.job for each in ours})
    return [each.id for each in ours if _is_orphan(each, jobs.get(each.job), row.number)]


def _is_orphan(submission: Submission, job: Job | None, generation: int) -> bool:
    if job is None:
        return True  # submitted in the lost time
    may_be_adopted = submission.attempt > job.num_attempts and job.fence < submission.fence < generation
    return not (may_be_adopted and job.state in _UNFINISHED)


def _parse(name: str) -> Submission | None:
    match = _SUBMISSION.fullmatch(name)
    if match is None:
        return None
    job, attempt, fence, site = match.groups()
    return Submission(id=name, job=job, attempt=int(attempt), fence=int(fence), site=site)
