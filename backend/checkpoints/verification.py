"""Verification of checkpoints: reads back every byte that the engine reported as saved.

Invariants:
- a checkpoint becomes `complete` only if its manifest has the hash that the engine reported and its parts have the
  hashes in the manifest; the one exception (a part too large for one turn) is recorded in `is_hashed`;
- wrong bytes or a foreign address make a checkpoint `corrupt` at once; a store that cannot be reached decides nothing;
- a turn ends within seconds, whatever the size: it stops between parts, and the next turn continues there;
- teams with fewer due checkpoints go first, so a team that saves many large ones delays its own.

Two concurrent turns do the same work and write the same result: `next_check_at` claims a row.
"""

import hashlib
import logging
import time
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Count, Min
from pydantic import ValidationError

from backend.checkpoints.files import CheckpointFiles, Elsewhere, MissingPart, files_of
from backend.checkpoints.metrics import metrics_at
from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.store.port import StoreError
from engine.spec.checkpoint_manifest import CheckpointManifest, CheckpointPart

log = logging.getLogger(__name__)

TURN_S: Final = 15.0
"""No further checkpoint is started after this time. Together with the current one, a turn stays below the 45 seconds
after which a background task is killed."""
CHECKPOINT_S: Final = 20.0
"""A part that cannot be read in this time (10 GB and more) is checked by its size only."""
CLAIM_LASTS: Final = timedelta(seconds=60)
LOOK_AGAIN: Final = timedelta(minutes=5)
"""After a failure of the store."""


class Corrupt(Exception):
    """The stored bytes differ from those that the engine reported."""


def verify_due(*, now: datetime) -> int:
    """Checks due checkpoints until the turn is over; returns the number of verdicts."""
    ends_at = time.monotonic() + TURN_S
    num_decided = 0
    while time.monotonic() < ends_at and (checkpoint := _claim(now)) is not None:
        num_decided += verify(checkpoint, now=now)
    return num_decided


def verify(checkpoint: Checkpoint, *, now: datetime, within_s: float = CHECKPOINT_S) -> bool:
    """Returns whether a verdict was reached."""
    ends_at = time.monotonic() + within_s
    row = Checkpoint.objects.filter(pk=checkpoint.pk, state=CheckpointState.VERIFYING)
    try:
        files = files_of(checkpoint)
        manifest = _read_manifest(checkpoint, files)
        num_checked, is_hashed = _check_parts(checkpoint, files, manifest, ends_at)
    except StoreError as error:
        row.update(next_check_at=now + LOOK_AGAIN, message=f"The files cannot be read: {error}"[:2_000])
        return False
    except (Corrupt, Elsewhere, MissingPart) as error:
        log.warning("corrupt checkpoint=%s job=%s: %s", checkpoint.pk, checkpoint.job_id, error)
        return row.update(state=CheckpointState.CORRUPT, message=str(error)[:2_000], next_check_at=None) == 1
    if num_checked < len(manifest.parts):
        row.update(num_parts_checked=num_checked, is_hashed=is_hashed, next_check_at=now)
        return False
    parts = {name: part.model_dump() for name, part in manifest.parts.items()}
    verdict = {"state": CheckpointState.COMPLETE, "verified_at": now, "next_check_at": now, "message": ""}
    verdict |= {"is_doubted": False}
    kept = {"parts": parts, "num_parts_checked": num_checked, "is_hashed": is_hashed, "metrics": metrics_at(checkpoint)}
    return row.update(**verdict, **kept) == 1


def _claim(now: datetime) -> Checkpoint | None:
    with transaction.atomic():
        due = Checkpoint.objects.filter(state=CheckpointState.VERIFYING, next_check_at__lte=now)
        rows = due.select_for_update(skip_locked=True, no_key=True, of=("self",)).order_by("next_check_at", "pk")
        teams = due.values("job__team").annotate(num=Count("pk"), oldest=Min("next_check_at"))
        for team in teams.order_by("num", "oldest"):
            checkpoint = rows.filter(job__team=team["job__team"]).first()
            if checkpoint is not None:  # else another turn has just claimed the team's last
                Checkpoint.objects.filter(pk=checkpoint.pk).update(next_check_at=now + CLAIM_LASTS)
                return checkpoint
        return None


def _read_manifest(checkpoint: Checkpoint, files: CheckpointFiles) -> CheckpointManifest:
    content = files.manifest()
    if hashlib.sha256(content).hexdigest() != checkpoint.manifest_sha256:
        raise Corrupt("the manifest differs from the one that the engine saved")
    try:
        return CheckpointManifest.model_validate_json(content)
    except ValidationError as error:
        raise Corrupt(f"the manifest is invalid: {error}") from error


def _check_parts(
    checkpoint: Checkpoint, files: CheckpointFiles, manifest: CheckpointManifest, ends_at: float
) -> tuple[int, bool]:
    """The number of verified parts, in order, and whether all of them were read."""
    num_checked, is_hashed = checkpoint.num_parts_checked, checkpoint.is_hashed
    for name, part in sorted(manifest.parts.items())[num_checked:]:
        is_first_of_turn = num_checked == checkpoint.num_parts_checked
        if files.num_bytes(name, part) != part.num_bytes:
            raise Corrupt(f"{name} has {files.num_bytes(name, part)} bytes, expected {part.num_bytes}")
        was_read = _check_bytes(files, name, part, ends_at)
        if not was_read and not is_first_of_turn:
            break  # it gets its own turn
        num_checked, is_hashed = num_checked + 1, is_hashed and was_read
    return num_checked, is_hashed


def _check_bytes(files: CheckpointFiles, name: str, part: CheckpointPart, ends_at: float) -> bool:
    """False: not enough time to read all of it."""
    digest = hashlib.sha256()
    for piece in files.chunks(name, part):
        digest.update(piece)
        if time.monotonic() > ends_at:
            return False
    if digest.hexdigest() != part.sha256:
        raise Corrupt(f"{name} does not match its hash in the manifest")
    return True
