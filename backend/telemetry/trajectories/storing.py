"""Writes the trajectories that a step's facts contain: a small row for lists, the full trajectory for the archive.

Invariants:
- row, full trajectory and words are written in one transaction with the fact;
- the same fact again changes nothing, archived or not;
- remarks, reasons and errors hold no detail of our hosts, processes and code;
- ingest never waits for the store: `trajectory_archive` moves full trajectories into a file later.
"""

from datetime import datetime

from backend.jobs.models import Job
from backend.telemetry.compression import compress
from backend.telemetry.fulltext.indexing import store_words
from backend.telemetry.models import Trajectory, UnarchivedTrajectory
from engine.spec.facts import TrajectoriesSampled, TrajectorySample
from engine.spec.for_tenants import for_tenants

MOST_SHOWN = 4_000
"""Characters of a text in its row, for lists. Nearly every response of a small model is shorter."""


def store_trajectories(job: Job, attempt: int, body: TrajectoriesSampled, *, cursor: int, now: datetime) -> None:
    samples = [_redacted(sample) for sample in body.trajectories]
    Trajectory.objects.bulk_create(
        (_row(job, attempt, body.step, sample, cursor) for sample in samples), ignore_conflicts=True
    )
    wholes = {(sample.prompt_ordinal, sample.sample): sample for sample in samples}
    # Rows that already existed have another cursor.
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


def _redacted(sample: TrajectorySample) -> TrajectorySample:
    """What the engine and the environment reported, not what the model or a tool wrote."""
    turns = [turn.model_copy(update={"error": for_tenants(turn.error)}) for turn in sample.turns]
    changes = {"remark": for_tenants(sample.remark), "reason": for_tenants(sample.reason), "turns": turns}
    return sample.model_copy(update=changes)


def _row(job: Job, attempt: int, step: int, sample: TrajectorySample, cursor: int) -> Trajectory:
    known = sample.model_dump(exclude={"trace", "turns", "parts"})
    shown = {name: known[name][:MOST_SHOWN] for name in ("prompt", "response", "remark", "reason")}
    num_turns = len(sample.turns)
    return Trajectory(job=job, attempt=attempt, step=step, cursor=cursor, num_turns=num_turns, **known | shown)
