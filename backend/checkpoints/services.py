"""Changes of checkpoints: recording, pinning, expiry, deletion.

Invariants:
- a recorded address lies in its attempt's own folder or prefix (`backend.checkpoints.files`);
- a change is made under the checkpoint's lock and leaves one entry in the team's audit log;
- pinned checkpoints, those in use and those being written are never deleted;
- files are touched only `GRACE` after the mark, when every transaction that had not seen the mark has ended, and not if
  one of those started a job from the checkpoint: then the mark is removed.
"""

import logging
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from backend.audit.services import record_action
from backend.checkpoints.files import Elsewhere, own_key
from backend.checkpoints.models import GONE, Checkpoint, CheckpointState, Retention
from backend.checkpoints.selectors import checkpoints_in_use
from backend.errors import Conflict, FieldError, Invalid, NotFound, Refusal
from backend.jobs.models import Job, JobAttempt
from engine.spec.facts import CheckpointSaved

log = logging.getLogger(__name__)

GRACE: Final = timedelta(seconds=60)
"""Longer than the database lets a statement (20 s) and an idle transaction (30 s) live."""


class Pinned(Conflict):
    """The checkpoint is pinned. Unpin it first."""

    code = "pinned"


class Promoted(Conflict):
    """The checkpoint is a version of a model, so it stays pinned. Remove that version first."""

    code = "promoted"


class InUse(Conflict):
    """A job that has not ended uses this checkpoint. Cancel the job, or wait until it ends."""

    code = "in_use"


class NotWhole(Conflict):
    """The checkpoint is corrupt and can only be deleted. Use another checkpoint."""

    code = "corrupt"


class ForeignAddress(Invalid):
    """A checkpoint's address is not in the folder of the attempt that reports it."""

    code = "foreign_address"


class CheckpointUnfinished(Refusal):
    """The checkpoint is still being written or verified. Try again in a moment."""

    status = 425
    code = "being_written"
    retryable = True


def record_checkpoint(job: Job, attempt: int, saved: CheckpointSaved, *, now: datetime) -> Checkpoint:
    """The engine verified it before reporting it; the control plane verifies it again. One row per attempt and step.
    Raises `ForeignAddress`."""
    try:
        own_key(saved.uri, job=job.pk, attempt=attempt, step=saved.step)
    except Elsewhere as error:
        log.warning("foreign checkpoint refused job=%s attempt=%d: %s", job.pk, attempt, error)
        raise ForeignAddress(errors=[FieldError(pointer="/uri", code="elsewhere", message=str(error))]) from error
    checkpoint, _ = Checkpoint.objects.get_or_create(
        job=job,
        attempt=attempt,
        step=saved.step,
        defaults={
            "version": saved.version,
            "uri": saved.uri,
            "manifest_sha256": saved.manifest_sha256,
            "num_bytes": saved.num_bytes,
            "created_at": now,
            "next_check_at": now,
            "code_version": saved.code_version,
        },
    )
    return checkpoint


def doubt_resume_point(attempt: JobAttempt, *, now: datetime) -> bool:
    """Called when the attempt could not resume. If it resumed from its own job's checkpoint and never ran, that is
    verified again, and until then the next attempt resumes from the one before."""
    actor = f"engine:{attempt.n}"
    if not attempt.resume_from or attempt.job.events.filter(type="state_changed", to_state="running", actor=actor):
        return False
    own = Checkpoint.objects.filter(job=attempt.job_id, uri=attempt.resume_from)
    readable = own.filter(state__in=(CheckpointState.COMPLETE, CheckpointState.VERIFYING))
    reset = {"is_doubted": True, "is_hashed": True, "num_parts_checked": 0, "next_check_at": now}
    return readable.update(state=CheckpointState.VERIFYING, **reset) > 0


def change_checkpoint(
    checkpoint_id: str, *, actor: str, now: datetime, pinned: bool | None, expires_at: datetime | None, has_expiry: bool
) -> Checkpoint:
    """`has_expiry`: set `expires_at` to the given value, which may be None."""
    with transaction.atomic():
        checkpoint = locked_checkpoint(checkpoint_id)
        before = _describe(checkpoint)
        if pinned is False and checkpoint.promotions.exists():
            raise Promoted()
        if pinned is not None:
            checkpoint.pinned = pinned
        if has_expiry:
            checkpoint.expires_at = expires_at
        if checkpoint.state == CheckpointState.COMPLETE:
            checkpoint.next_check_at = now  # triggers retention
        checkpoint.save(update_fields=["pinned", "expires_at", "next_check_at"])
        if _describe(checkpoint) != before:
            _record(checkpoint, "checkpoint.changed", actor=actor, now=now, data=_describe(checkpoint))
    return checkpoint


def delete_checkpoint(checkpoint_id: str, *, actor: str, now: datetime, reason: str = "asked") -> Checkpoint:
    """Marks it. Its files are removed after the commit, with retries."""
    with transaction.atomic():
        checkpoint = locked_checkpoint(checkpoint_id)
        if checkpoint.pinned:
            raise Pinned()
        if checkpoint.state == CheckpointState.VERIFYING:
            raise CheckpointUnfinished()
        user = checkpoints_in_use([checkpoint.pk]).get(checkpoint.pk)
        if user is not None:
            raise InUse(job=user) if user == checkpoint.job_id else InUse()
        checkpoint.state, checkpoint.next_check_at = CheckpointState.DELETING, now + GRACE
        checkpoint.save(update_fields=["state", "next_check_at"])
        data = {"job": checkpoint.job_id, "step": checkpoint.step, "reason": reason}
        _record(checkpoint, "checkpoint.deleted", actor=actor, now=now, data=data)
    return checkpoint


def set_retention(
    job: Job, *, actor: str, now: datetime, keep_last: int, keep_best: int, metric: str, ttl_s: int | None
) -> Retention:
    values = {"keep_last": keep_last, "keep_best": keep_best, "metric": metric, "ttl_s": ttl_s}
    with transaction.atomic():
        retention, _ = Retention.objects.update_or_create(job=job, defaults=values)
        Checkpoint.objects.filter(job=job, state=CheckpointState.COMPLETE).update(next_check_at=now)
        record_action(team_id=job.team_id, actor=actor, action="retention.changed", target=job.pk, now=now, data=values)
    return retention


def lock_for_use(checkpoint_id: str) -> Checkpoint:
    """Locks a complete checkpoint, in the caller's transaction."""
    checkpoint = locked_checkpoint(checkpoint_id)
    refuse_unless_whole(checkpoint)
    return checkpoint


def refuse_unless_whole(checkpoint: Checkpoint) -> None:
    if checkpoint.state == CheckpointState.VERIFYING:
        raise CheckpointUnfinished()
    if checkpoint.state == CheckpointState.CORRUPT:
        raise NotWhole()
    if checkpoint.state in GONE:
        raise NotFound("This checkpoint was deleted.")


def locked_checkpoint(checkpoint_id: str) -> Checkpoint:
    """Raises `NotFound` if it was deleted."""
    rows = Checkpoint.objects.select_related("job").select_for_update(of=("self",), no_key=True)
    checkpoint = rows.filter(pk=checkpoint_id).exclude(state__in=GONE).first()
    if checkpoint is None:
        raise NotFound("Checkpoint not found.")
    return checkpoint


def _describe(checkpoint: Checkpoint) -> dict[str, object]:
    expires_at = checkpoint.expires_at
    return {"pinned": checkpoint.pinned, "expires_at": expires_at.isoformat() if expires_at else None}


def _record(checkpoint: Checkpoint, action: str, *, actor: str, now: datetime, data: dict[str, object]) -> None:
    record_action(team_id=checkpoint.job.team_id, actor=actor, action=action, target=checkpoint.pk, now=now, data=data)
