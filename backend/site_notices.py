"""What is wrong with the site itself, for a banner on every page: a full disk, background work that stands still.

Invariants:
- looking costs one statement in `LOOKS_EVERY_S` and process, and never breaks a page;
- who is not signed in is told nothing.
"""

import os
import threading
import time
from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.db import DatabaseError, InterfaceError, transaction
from django.http import HttpRequest

from backend.pulses import LATE_AFTER_S, ages

LOOKS_EVERY_S: Final = 5.0
LEAST_FREE_BYTES: Final = 64 * 1024 * 1024  # Postgres takes 16 MiB at a time, and stops for want of it
_WORDS: Final = {
    "beat": "what is done at intervals (scheduling, checks, retries)",
    "worker": "what is done in the background (launching, scheduling, checks)",
}


class _Looks:
    """The notices as of the last look."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._due_at = 0.0
        self._notices: tuple[str, ...] = ()

    def newest(self) -> tuple[str, ...]:
        with self._guard:
            is_due = time.monotonic() >= self._due_at
            if is_due:
                self._due_at = time.monotonic() + LOOKS_EVERY_S
        if is_due:
            self._notices = tuple(notices())
        return self._notices


_looks = _Looks()


def site_notices(request: HttpRequest) -> dict[str, tuple[str, ...]]:
    """The context processor."""
    user = getattr(request, "user", None)
    return {"site_notices": _looks.newest() if user is not None and user.is_authenticated else ()}


def notices() -> Iterator[str]:
    left = free_bytes()
    if left < LEAST_FREE_BYTES:
        yield f"The disk of this site is full ({left / 1e6:.0f} MB left). Jobs wait until there is room again."
    try:
        with transaction.atomic():
            late = {part: age for part, age in ages().items() if age > LATE_AFTER_S}
    except (DatabaseError, InterfaceError):
        return
    for part, age in late.items():
        yield f"For {_span(age)} nothing has been heard of {_WORDS[part]}. Jobs that run go on; others wait."


def free_bytes() -> int:
    """That this process may write to the store."""
    try:
        disk = os.statvfs(settings.ENVIRONMENT.store_dir)
    except OSError:  # not there yet
        return LEAST_FREE_BYTES
    return disk.f_bavail * disk.f_frsize


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
