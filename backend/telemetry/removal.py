"""Removes log lines and trajectories of jobs that ended long ago: rows, compressed texts, and files of the store.

    stored ──▶ marked (readers get 410) ──▶ removed piece by piece ──▶ done

Invariants:
- only for ended jobs, `keep` after their end; running jobs keep everything;
- readers get 410 before the first row is removed, so that none mistakes a remainder for all;
- each call removes a bounded piece, and the next one continues; a crash in between only removes less;
- a file of the store is removed before the row that names it; files without a row, left by a crashed archiving, are
  found by their folder.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, QuerySet

from backend.errors import Refusal
from backend.jobs.models import TERMINAL_STATES, Job
from backend.store.port import ObjectStore, StoreError
from backend.telemetry.models import (
    LogBatch,
    Removal,
    RemovedKind,
    Trajectory,
    TrajectoryFile,
    TrajectoryWords,
    UnarchivedTrajectory,
)

log = logging.getLogger(__name__)

JOBS_A_CALL: Final = 200
ROWS_A_CALL: Final = 5_000
FILES_A_CALL: Final = 200
_WORDS: Final[Mapping[str, str]] = {
    RemovedKind.LOGS: "The log lines of this job were removed on {day}; its events and metrics are kept.",
    RemovedKind.TRAJECTORIES: "The trajectories of this job were removed on {day}; its metrics are kept.",
}


class Removed(Refusal):
    """Removed some time after the job's end."""

    status = 410
    code = "removed"


def refuse_if_trajectories_are_removed(job: Job) -> None:
    refuse_if_removed(job, RemovedKind.TRAJECTORIES)


def refuse_if_logs_are_removed(job: Job) -> None:
    refuse_if_removed(job, RemovedKind.LOGS)


def refuse_if_removed(job: Job, kind: RemovedKind) -> None:
    """Raises `Removed`; list it on the route as `problems(410)`."""
    at = Removal.objects.filter(job=job, kind=kind).values_list("at", flat=True).first() if job.is_terminal else None
    if at is not None:
        raise Removed(_WORDS[kind].format(day=f"{at:%Y-%m-%d}"), removed_at=at.isoformat())


def remove_old_logs(*, keep: timedelta, now: datetime, limit: int = ROWS_A_CALL) -> int:
    """Returns the number of rows removed."""
    return _remove(RemovedKind.LOGS, _remove_lines, keep=keep, now=now, limit=limit)


def remove_old_trajectories(store: ObjectStore, *, keep: timedelta, now: datetime, limit: int = ROWS_A_CALL) -> int:
    """Returns the number of rows removed. If the store is unreachable, a later round continues."""
    files_left = FILES_A_CALL

    def remove(job_id: str, most: int) -> tuple[int, bool]:
        nonlocal files_left
        num_rows, num_files, is_done = _remove_trajectories(store, job_id, most, files_left)
        files_left -= num_files
        return num_rows, is_done

    return _remove(RemovedKind.TRAJECTORIES, remove, keep=keep, now=now, limit=limit)


def _remove(
    kind: RemovedKind,
    piece: Callable[[str, int], tuple[int, bool]],
    *,
    keep: timedelta,
    now: datetime,
    limit: int,
) -> int:
    num_removed = 0
    for job_id in _due(kind, keep=keep, now=now):
        Removal.objects.get_or_create(job_id=job_id, kind=kind, defaults={"at": now})
        try:
            count, is_done = piece(job_id, limit - num_removed)
        except StoreError as error:
            log.warning("removal failed, will retry kind=%s job=%s: %s", kind, job_id, error)
            continue
        num_removed += count
        if is_done:
            Removal.objects.filter(job_id=job_id, kind=kind).update(is_done=True)
        if num_removed >= limit:
            break
    if num_removed:
        log.info("removed kind=%s rows=%d", kind, num_removed)
    return num_removed


def _due(kind: RemovedKind, *, keep: timedelta, now: datetime) -> list[str]:
    done = Removal.objects.filter(job=OuterRef("pk"), kind=kind, is_done=True)
    old = Job.objects.filter(~Exists(done), state__in=TERMINAL_STATES, finished_at__lt=now - keep)
    return list(old.order_by("finished_at").values_list("pk", flat=True)[:JOBS_A_CALL])


def _remove_lines(job_id: str, limit: int) -> tuple[int, bool]:
    count = _delete_some(LogBatch.objects.filter(job_id=job_id), limit)
    return count, count < limit


def _remove_trajectories(store: ObjectStore, job_id: str, limit: int, most_files: int) -> tuple[int, int, bool]:
    """Returns rows, files, and whether nothing is left."""
    num_files = 0
    for item in store.list(f"jobs/{job_id}/trajectories/"):
        if num_files >= most_files:
            return 0, num_files, False
        store.delete(item.key)
        num_files += 1
    with transaction.atomic():
        ids = list(Trajectory.objects.filter(job_id=job_id).values_list("pk", flat=True)[:limit])
        # An archiving in progress holds these; its file has a row by the time this continues.
        UnarchivedTrajectory.objects.filter(pk__in=ids).delete()
        TrajectoryWords.objects.filter(pk__in=ids).delete()
        with connection.cursor() as db:  # raw SQL: Django would read all texts first
            db.execute("DELETE FROM telemetry_trajectory WHERE id = ANY(%s)", [ids])
            count = db.rowcount
    if count >= limit:
        return count, num_files, False
    with transaction.atomic():
        files = TrajectoryFile.objects.filter(job_id=job_id, trajectories__isnull=True)
        keys = list(files.values_list("key", flat=True))
        for key in keys:  # archived in the meantime; deleting the others again is no error
            store.delete(key)
        files.delete()
    return count, num_files + len(keys), True


def _delete_some(rows: QuerySet[LogBatch], limit: int) -> int:
    ids = list(rows.values_list("pk", flat=True)[:limit])
    return LogBatch.objects.filter(pk__in=ids).delete()[0]
