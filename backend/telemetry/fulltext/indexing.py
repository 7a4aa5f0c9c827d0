"""The words of new trajectories, written with them.

Invariants:
- in the transaction of the fact, so what can be listed can be found;
- a row is written once and never changed: moving a trajectory into a file touches no index of words.
"""

from collections.abc import Sequence
from typing import Final

from django.db import connection

from backend.jobs.models import Job
from backend.telemetry.fulltext.said import kept, said_by
from backend.telemetry.fulltext.words import kept_words
from engine.spec.facts import TrajectorySample

_WRITE: Final = """
INSERT INTO telemetry_trajectorywords (trajectory_id, job_id, words, content) VALUES (%s, %s, %s, %s)
"""


def mark_of_job(job_id: str) -> str:
    return f"job:{job_id}"


def mark_of_team(team_id: str) -> str:
    return f"team:{team_id}"


def store_words(job: Job, samples: Sequence[tuple[int, TrajectorySample]]) -> None:
    """Each with the key of its row."""
    marks = [mark_of_job(job.pk), mark_of_team(job.team_id)]
    rows = []
    for key, sample in samples:
        said = said_by(sample)
        rows.append((key, job.pk, kept_words([each.text for each in said], marks), kept(said)))
    if rows:
        with connection.cursor() as db:
            db.executemany(_WRITE, rows)
