"""Archives trajectories: complete ones waiting in Postgres become one Parquet file in the store.

    UnarchivedTrajectory rows ──▶ jobs/<job>/trajectories/<first id>.parquet ──▶ Trajectory.file, .row; rows deleted

Invariants:
- rows are deleted in the transaction that records their file, and only after the file is durable;
- a crash between file and commit leaves the rows, and the next round writes the same key again: no file is orphaned;
- two rounds for one job never take the same rows; an unreachable store only makes rows wait.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Count, Min, Q

from backend.jobs.models import TERMINAL_STATES
from backend.store.port import ObjectStore
from backend.telemetry.compression import decompress
from backend.telemetry.models import Trajectory, TrajectoryFile, UnarchivedTrajectory
from engine.spec.facts import TrajectorySample

log = logging.getLogger(__name__)

MAX_ROWS_PER_FILE: Final = 512
ARCHIVE_AFTER_ROWS: Final = 256
ARCHIVE_AFTER: Final = timedelta(minutes=10)
MOST_JOBS: Final = 50


def jobs_to_archive(now: datetime) -> list[str]:
    """Jobs with enough rows for a file, with rows that waited long enough, or that have ended."""
    waiting = UnarchivedTrajectory.objects.values("job_id").annotate(count=Count("pk"), oldest=Min("arrived_at"))
    due = waiting.filter(
        Q(count__gte=ARCHIVE_AFTER_ROWS) | Q(oldest__lt=now - ARCHIVE_AFTER) | Q(job__state__in=TERMINAL_STATES)
    )
    return list(due.order_by("oldest").values_list("job_id", flat=True)[:MOST_JOBS])


def archive_trajectories(job_id: str, store: ObjectStore, *, now: datetime) -> int:
    """Returns the number of trajectories archived."""
    from backend.telemetry.trajectories.parquet import parquet_of  # 37 MB with pyarrow: imported only to write a file

    with transaction.atomic():
        # Does not take the job's lock: ingest must not wait for the store. Other rounds skip these rows.
        waiting = list(
            UnarchivedTrajectory.objects.select_for_update(of=("self",), skip_locked=True)
            .filter(job_id=job_id)
            .select_related("trajectory")
            .order_by("trajectory_id")[:MAX_ROWS_PER_FILE]
        )
        if not waiting:
            return 0
        content = parquet_of([_whole(each) for each in waiting])
        key = f"jobs/{job_id}/trajectories/{waiting[0].trajectory_id}.parquet"
        store.put(key, content)
        file = TrajectoryFile.objects.create(
            job_id=job_id, key=key, num_bytes=len(content), num_rows=len(waiting), created_at=now
        )
        _note_places(file, waiting)
    log.info("trajectories archived job=%s rows=%d bytes=%d", job_id, len(waiting), len(content))
    return len(waiting)


def _whole(waiting: UnarchivedTrajectory) -> tuple[int, int, TrajectorySample]:
    row = waiting.trajectory
    return row.attempt, row.step, TrajectorySample.model_validate_json(decompress(waiting.content))


def _note_places(file: TrajectoryFile, waiting: Sequence[UnarchivedTrajectory]) -> None:
    for place, each in enumerate(waiting):
        each.trajectory.file, each.trajectory.row = file, place
    Trajectory.objects.bulk_update([each.trajectory for each in waiting], ["file", "row"])
    UnarchivedTrajectory.objects.filter(pk__in=[each.pk for each in waiting]).delete()
