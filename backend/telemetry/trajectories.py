"""Writing the trajectories that a step's facts chose to show: a small row to list, the whole for the archive.

Invariants:
- a row, its whole and its words are written in one transaction with the fact, so none is without the others;
- the same fact again changes nothing, archived or not;
- ingest never waits for the store: `trajectory_archive` moves the whole into a file later.
"""

from datetime import datetime

from backend.jobs.models import Job
from backend.telemetry.compression import compress
from backend.telemetry.fulltext.indexing import store_words
from backend.telemetry.models import Trajectory, UnarchivedTrajectory
from engine.spec.facts import TrajectoriesSampled, TrajectorySample

MOST_SHOWN = 4_000
"""Characters of a text in its row: what a list shows. Nearly every response of a small model is shorter."""


def store_trajectories(job: Job, attempt: int, body: TrajectoriesSampled, *, cursor: int, now: datetime) -> None:
    Trajectory.objects.bulk_create(
        (_row(job, attempt, body.step, sample, cursor) for sample in body.trajectories), ignore_conflicts=True
    )
    wholes = {(sample.prompt_ordinal, sample.sample): sample for sample in body.trajectories}
    # Those that were there already have another cursor.
    new = list(Trajectory.objects.filter(job=job, cursor=cursor).only("id", "prompt_ordinal", "sample"))
    UnarchivedTrajectory.objects.bulk_create(
        UnarchivedTrajectory(
            trajectory=row,
            job=job,
            content=compress(wholes[row.prompt_ordinal, row.sample].model_dump_json().encode()),
            arrived_at=now,
        )
        for row in new
    )
    store_words(job, [(row.pk, wholes[row.prompt_ordinal, row.sample]) for row in new])


def _row(job: Job, attempt: int, step: int, sample: TrajectorySample, cursor: int) -> Trajectory:
    known = sample.model_dump(exclude={"trace", "turns", "parts"})
    shown = {name: known[name][:MOST_SHOWN] for name in ("prompt", "response", "remark", "reason")}
    num_turns = len(sample.turns)
    return Trajectory(job=job, attempt=attempt, step=step, cursor=cursor, num_turns=num_turns, **known | shown)
