"""Verification of checkpoints: every byte that the engine said it had saved is read back.

Invariants:
- `complete` is said only of a checkpoint whose manifest hashes to what the engine told us and whose parts hash to
  what the manifest says; the one exception (a part too large to be read in one turn) is noted in `is_hashed`;
- bytes that are wrong make a checkpoint `corrupt` at once, and so does an address that nobody can read; files that
  cannot be seen from here decide nothing;
- every turn ends in seconds, whatever the size: it stops between parts and goes on where it stopped.

Two turns at once do the same work twice and write the same result: a row is claimed by its `next_check_at`.
"""

import hashlib
import logging
import time
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from pydantic import ValidationError

from backend.checkpoints.files import CheckpointFiles, Elsewhere, MissingPart, Unreadable, files_of
from backend.checkpoints.metrics import metrics_at
from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.store.port import StoreError
from engine.spec.checkpoint_manifest import CheckpointManifest, CheckpointPart

log = logging.getLogger(__name__)

TURN_S: Final = 15.0
"""No other checkpoint is started after so long. With the one that is being read it stays below the 45 seconds after
which a background task is killed."""
CHECKPOINT_S: Final = 20.0
"""A part that cannot be read in so long (10 GB and more) is checked by its size alone."""
CLAIM_LASTS: Final = timedelta(seconds=60)
LOOK_AGAIN: Final = timedelta(minutes=5)
"""After files that cannot be seen from here: a volume that is not mounted, a store that is away."""


class Corrupt(Exception):
    """A difference between the stored bytes and those that the engine said it had saved."""


def verify_due(*, now: datetime) -> int:
    """Checks what is due, oldest first, until the turn is over. How many got their verdict."""
    ends_at = time.monotonic() + TURN_S
    num_decided = 0
    while time.monotonic() < ends_at and (checkpoint := _claim(now)) is not None:
        num_decided += verify(checkpoint, now=now)
    return num_decided


def verify(checkpoint: Checkpoint, *, now: datetime, within_s: float = CHECKPOINT_S) -> bool:
    """False: not decided yet."""
    ends_at = time.monotonic() + within_s
    row = Checkpoint.objects.filter(pk=checkpoint.pk, state=CheckpointState.VERIFYING)
    try:
        files = files_of(checkpoint)
        manifest = _manifest(checkpoint, files)
        num_checked, is_hashed = _check_parts(checkpoint, files, manifest, ends_at)
    except Unreadable as error:
        log.warning("unreadable checkpoint=%s job=%s: %s", checkpoint.pk, checkpoint.job_id, error)
        return row.update(state=CheckpointState.CORRUPT, message=str(error)[:2_000], next_check_at=None) == 1
    except (Elsewhere, StoreError) as error:
        row.update(next_check_at=now + LOOK_AGAIN, message=f"It cannot be read from here: {error}"[:2_000])
        return False
    except (Corrupt, MissingPart) as error:
        log.warning("corrupt checkpoint=%s job=%s: %s", checkpoint.pk, checkpoint.job_id, error)
        return row.update(state=CheckpointState.CORRUPT, message=str(error)[:2_000], next_check_at=None) == 1
    if num_checked < len(manifest.parts):
        row.update(num_parts_checked=num_checked, is_hashed=is_hashed, next_check_at=now)
        return False
    found = {name: part.model_dump() for name, part in manifest.parts.items()}
    verdict = {"state": CheckpointState.COMPLETE, "verified_at": now, "next_check_at": now, "message": ""}
    verdict |= {"is_doubted": False}
    kept = {"parts": found, "num_parts_checked": num_checked, "is_hashed": is_hashed, "metrics": metrics_at(checkpoint)}
    return row.update(**verdict, **kept) == 1


def _claim(now: datetime) -> Checkpoint | None:
    with transaction.atomic():
        due = Checkpoint.objects.filter(state=CheckpointState.VERIFYING, next_check_at__lte=now)
        found = due.select_for_update(skip_locked=True, no_key=True).order_by("next_check_at", "pk").first()
        if found is not None:
            Checkpoint.objects.filter(pk=found.pk).update(next_check_at=now + CLAIM_LASTS)
        return found


def _manifest(checkpoint: Checkpoint, files: CheckpointFiles) -> CheckpointManifest:
    content = files.manifest()
    if hashlib.sha256(content).hexdigest() != checkpoint.manifest_sha256:
        raise Corrupt("the manifest is not the one that the engine saved")
    try:
        return CheckpointManifest.model_validate_json(content)
    except ValidationError as error:
        raise Corrupt(f"the manifest is not one: {error}") from error


def _check_parts(
    checkpoint: Checkpoint, files: CheckpointFiles, manifest: CheckpointManifest, ends_at: float
) -> tuple[int, bool]:
    """The number of parts, in their order, that are as they should be; and whether all of those were read."""
    num_checked, is_hashed = checkpoint.num_parts_checked, checkpoint.is_hashed
    for name, part in sorted(manifest.parts.items())[num_checked:]:
        is_first_of_turn = num_checked == checkpoint.num_parts_checked
        if files.num_bytes(name, part) != part.num_bytes:
            raise Corrupt(f"{name} has {files.num_bytes(name, part)} bytes, the manifest says {part.num_bytes}")
        was_read = _check_bytes(files, name, part, ends_at)
        if not was_read and not is_first_of_turn:
            break  # it gets a turn of its own
        num_checked, is_hashed = num_checked + 1, is_hashed and was_read
    return num_checked, is_hashed


def _check_bytes(files: CheckpointFiles, name: str, part: CheckpointPart, ends_at: float) -> bool:
    """False: there was no time to read all of it."""
    digest = hashlib.sha256()
    for piece in files.chunks(name, part):
        digest.update(piece)
        if time.monotonic() > ends_at:
            return False
    if digest.hexdigest() != part.sha256:
        raise Corrupt(f"{name} does not hash to what the manifest says")
    return True
