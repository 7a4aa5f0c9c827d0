"""Where the anchors and the key that signs them lie: out of reach of the Ray nodes, which may write the store.

They once lay in the store's folder `audit`, and are taken over from there by the first process that asks for them.

Invariants:
- a file is at its new place, on disk, before it is taken from the old one; one that is there is never replaced;
- where the new place cannot be written, the log goes on where it is, and a warning says so every time.
"""

import fcntl
import logging
import os
import secrets
from pathlib import Path
from typing import Final

from django.conf import settings

from backend.store.folder import sync_folder

log = logging.getLogger(__name__)

ANCHORS_FILE: Final = "anchors.jsonl"
_FORMER_FOLDER: Final = "audit"
_FORMER_KEY: Final = "signing_key.pem"


def anchors_and_key() -> tuple[Path, Path]:
    """The file of anchors and the file of the key, which may not be there yet."""
    environment = settings.ENVIRONMENT
    anchors, key = environment.audit_dir / ANCHORS_FILE, environment.audit_key_file
    former = environment.store_dir / _FORMER_FOLDER
    moves = {former / ANCHORS_FILE: anchors, former / _FORMER_KEY: key}
    if not any(_is_left(old, new) for old, new in moves.items()):
        return anchors, key
    try:
        anchors.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(anchors.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # of several processes one moves
            for old, new in moves.items():
                if _is_left(old, new):
                    _move(old, new)
        finally:
            os.close(handle)
    except OSError as error:
        log.warning(
            "the audit log's key lies in %s, where every Ray node may read it, and cannot be moved to %s (%s); "
            "set LAMINAR_SITE_DIR to a folder that the control plane may write",
            *(former, key.parent, error.strerror),
        )
        return former / ANCHORS_FILE, former / _FORMER_KEY
    return anchors, key


def _is_left(old: Path, new: Path) -> bool:
    return old != new and not new.exists() and old.is_file() and not old.is_symlink()


def _move(old: Path, new: Path) -> None:
    """Perhaps to another file system."""
    new.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(old, os.O_RDONLY | os.O_NOFOLLOW), "rb") as source:
        fcntl.flock(source, fcntl.LOCK_EX)  # who appends has it
        draft = new.with_name(f"{new.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            target.write(source.read())
            target.flush()
            os.fsync(target.fileno())
        draft.rename(new)
        sync_folder(new.parent)
        old.unlink()
    log.info("moved %s to %s", old, new)
