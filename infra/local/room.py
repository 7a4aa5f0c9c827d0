"""Room on the disk of a home: what is left of it, and what may be freed of it without asking: old lines of logs."""

import contextlib
import os
import shutil
from pathlib import Path

from infra.local.home import Home

LOG_LIMIT_BYTES = 20 * 1024 * 1024
# Postgres takes 16 MiB at a time for its own log, and stops for want of it.
LEAST_FREE_BYTES = 64 * 1024 * 1024


def rotate(log: Path, *, limit_bytes: int = LOG_LIMIT_BYTES) -> None:
    """Copied aside, if there is room, and emptied in place: its writers keep it open, and append."""
    if not log.exists() or log.stat().st_size <= limit_bytes:
        return
    aside = log.with_suffix(".log.1")
    try:
        shutil.copyfile(log, aside)
    except OSError:
        aside.unlink(missing_ok=True)
    os.truncate(log, 0)


def has_room(home: Home) -> bool:
    disk = os.statvfs(home.folder)
    return disk.f_bavail * disk.f_frsize >= LEAST_FREE_BYTES


def make_room(home: Home) -> int:
    """Bytes that were freed."""
    freed = 0
    for old in home.logs.glob("*.log.1"):
        with contextlib.suppress(OSError):
            freed += old.stat().st_size
            old.unlink()
    return freed
