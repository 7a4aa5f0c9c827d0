"""Retention of a job's checkpoints: the pure choice of those to delete, and the sweep that deletes them.

Invariants:
- of a job's complete checkpoints the newest `keep_last` and the `keep_best` best by the job's metric are kept;
- pinned checkpoints, those in use and those under verification are never deleted;
- a checkpoint is deleted only if a newer, verified one exists: the newest complete one is kept at any age;
- a corrupt one is deleted once a newer, complete one exists; until then it can be inspected.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from backend.checkpoints.files import Elsewhere, files_of
from backend.checkpoints.metrics import KEPT, metrics_at
from backend.checkpoints.models import Checkpoint, CheckpointState, Retention
from backend.checkpoints.selectors import checkpoints_in_use, checkpoints_of, retention_of
from backend.checkpoints.services import delete_checkpoint
from backend.errors import Refusal
from backend.jobs.models import Job
from backend.store.port import StoreError

log = logging.getLogger(__name__)

ACTOR: Final = "retention"
JOBS_A_SWEEP: Final = 200
DELETIONS_A_SWEEP: Final = 50
CLAIM_LASTS: Final = timedelta(seconds=60)
LOOK_AGAIN: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    id: str
    state: str
    created_at: datetime
    pinned: bool = False
    expires_at: datetime | None = None
    value: float | None = None
    """Value of the job's metric."""


def to_delete(
    newest_first: Sequence[Kept], *, keep_last: int, keep_best: int, ttl_s: int | None, now: datetime
) -> list[str]:
    """Ids, oldest first."""
    whole = [each for each in newest_first if each.state == CheckpointState.COMPLETE]
    if not whole:
        return []
    ranked = sorted((each for each in whole if each.value is not None), key=lambda each: -(each.value or 0.0))
    best = {each.id for each in ranked[:keep_best]}
    last = {each.id for each in whole[:keep_last]}
    newest = newest_first.index(whole[0])

    def goes(each: Kept) -> bool:
        if each.pinned or each.state not in (CheckpointState.COMPLETE, CheckpointState.CORRUPT):
            return False
        if each.state == CheckpointState.CORRUPT:
            return True
        if each.expires_at is not None and each.expires_at <= now:
            return True
        if ttl_s is not None and each.created_at + timedelta(seconds=ttl_s) <= now and each.id not in last:
            return True
        return each.id not in last and each.id not in best

    return [each.id for each in reversed(newest_first[newest + 1 :]) if goes(each)]


def sweep(*, now: datetime) -> int:
    """Checks the jobs that are due; returns the number of marked checkpoints."""
    due = Checkpoint.objects.filter(state=CheckpointState.COMPLETE, next_check_at__lte=now).order_by("next_check_at")
    jobs = list(dict.fromkeys(due.values_list("job_id", flat=True)[:JOBS_A_SWEEP]))
    return sum(sweep_job(job, now=now) for job in Job.objects.filter(pk__in=jobs))


def sweep_job(job: Job, *, now: datetime) -> int:
    retention, rows = retention_of(job), list(checkpoints_of(job))
    _refresh_metrics(rows, {*KEPT, retention.metric})
    used = checkpoints_in_use([row.pk for row in rows])
    chosen = to_delete(
        [_to_kept(row, retention, is_used=row.pk in used) for row in rows],
        keep_last=retention.keep_last,
        keep_best=retention.keep_best,
        ttl_s=retention.ttl_s,
        now=now,
    )
    num_marked = sum(_mark(checkpoint_id, now=now) for checkpoint_id in chosen)
    # Checked again: checkpoints in use or with an expiry, and running jobs, whose evaluations come later.
    looks_again = bool(used) or not job.is_terminal or _will_expire(rows, retention)
    left = Checkpoint.objects.filter(job=job, state=CheckpointState.COMPLETE, next_check_at__lte=now)
    left.update(next_check_at=now + LOOK_AGAIN if looks_again else None)
    return num_marked


def remove_files(*, now: datetime) -> int:
    """Removes the files of marked checkpoints. An interrupted removal stays marked and is repeated."""
    num_removed = 0
    for _ in range(DELETIONS_A_SWEEP):
        checkpoint = _claim(now)
        if checkpoint is None:
            break
        row = Checkpoint.objects.filter(pk=checkpoint.pk, state=CheckpointState.DELETING)
        if checkpoint.parts and checkpoints_in_use([checkpoint.pk]):  # used before the mark was visible
            row.update(state=CheckpointState.COMPLETE, next_check_at=now + LOOK_AGAIN)
            continue
        try:
            row.update(parts={})  # irreversible from here
            files_of(checkpoint).remove()
        except Elsewhere as error:  # outside the job's place; the row has the address
            log.warning("files of a deleted checkpoint stay checkpoint=%s: %s", checkpoint.pk, error)
        except (OSError, StoreError) as error:
            log.warning("files not removed, will retry checkpoint=%s: %s", checkpoint.pk, error)
            continue
        num_removed += row.update(state=CheckpointState.DELETED, deleted_at=now, next_check_at=None)
    return num_removed


def _claim(now: datetime) -> Checkpoint | None:
    with transaction.atomic():
        due = Checkpoint.objects.filter(state=CheckpointState.DELETING, next_check_at__lte=now)
        checkpoint = due.select_for_update(skip_locked=True, no_key=True).order_by("next_check_at", "pk").first()
        if checkpoint is not None:
            Checkpoint.objects.filter(pk=checkpoint.pk).update(next_check_at=now + CLAIM_LASTS)
        return checkpoint


def _mark(checkpoint_id: str, *, now: datetime) -> bool:
    try:
        delete_checkpoint(checkpoint_id, actor=ACTOR, now=now, reason="retention")
    except Refusal:  # it was just pinned or taken into use
        return False
    return True


def _to_kept(row: Checkpoint, retention: Retention, *, is_used: bool) -> Kept:
    return Kept(
        id=row.pk,
        state=row.state,
        created_at=row.created_at,
        pinned=row.pinned or is_used,
        expires_at=row.expires_at,
        value=row.metrics.get(retention.metric),
    )


def _refresh_metrics(rows: Iterable[Checkpoint], names: set[str]) -> None:
    """An evaluation is reported after its checkpoint."""
    for row in rows:
        if row.state == CheckpointState.COMPLETE and not names <= row.metrics.keys():
            metrics = {**row.metrics, **metrics_at(row, names)}
            if metrics != row.metrics:
                row.metrics = metrics
                row.save(update_fields=["metrics"])


def _will_expire(rows: Iterable[Checkpoint], retention: Retention) -> bool:
    return retention.ttl_s is not None or any(row.expires_at is not None for row in rows)
