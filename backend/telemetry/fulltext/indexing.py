"""Indexes the words of new trajectories.

Invariants:
- runs in the transaction of the fact, so every listed trajectory can be found;
- a row is written once and never changed: archiving a trajectory does not touch the index.
"""

from collections.abc import Sequence
from typing import Final

from django.db import connection

from backend.jobs.models import Job
from backend.telemetry.fulltext.searched_texts import pack_texts, searched_texts
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
    """`samples`: each with the key of its row."""
    marks = [mark_of_job(job.pk), mark_of_team(job.team_id)]
    rows = []
    for key, sample in samples:
        texts = searched_texts(sample)
        rows.append((key, job.pk, kept_words([each.text for each in texts], marks), pack_texts(texts)))
    if rows:
        with connection.cursor() as db:
            db.executemany(_WRITE, rows)
