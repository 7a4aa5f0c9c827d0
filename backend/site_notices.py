"""Problems of the site itself, for a banner on every page: a full or silent disk, stalled background work.

Invariants:
- a check costs one statement per `LOOKS_EVERY_S` and process, and neither breaks nor delays a page;
- signed-out visitors see no notices.
"""

import threading
import time
from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.db import DatabaseError, InterfaceError, transaction
from django.http import HttpRequest

from backend.background_call import CallResult
from backend.disks import Room, room_at
from backend.pulses import LATE_AFTER_S, ages

LOOKS_EVERY_S: Final = 5.0
SILENT_AFTER_S: Final = 10.0  # a restarting file server is away only for a moment
LEAST_FREE_BYTES: Final = 64 * 1024 * 1024  # Postgres allocates 16 MiB at a time, and stops if it cannot
_WORDS: Final = {
    "beat": "periodic work (scheduling, checks, retries)",
    "worker": "background work (launching, scheduling, checks)",
}


class _Looks:
    """The notices of the last check."""

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
    yield from _of_the_disk(_read_store_disk())
    try:
        with transaction.atomic():
            late = {part: age for part, age in ages().items() if age > LATE_AFTER_S}
    except (DatabaseError, InterfaceError):
        return
    for part, age in late.items():
        yield f"No {_WORDS[part]} for {_format_span(age)}. Running jobs continue; others wait."


def _read_store_disk() -> CallResult[Room] | None:
    """None: the folder does not exist yet, or its disk reports an error, which operators see on the status page."""
    try:
        return room_at(settings.ENVIRONMENT.store_dir)
    except OSError:
        return None


def _of_the_disk(heard: CallResult[Room] | None) -> Iterator[str]:
    if heard and heard.silent_s is not None and heard.silent_s > SILENT_AFTER_S:
        yield (
            f"The disk of this site's files has not responded for {_format_span(heard.silent_s)}. Downloads, "
            "checkpoints and starts of jobs wait until it does."
        )
    elif heard and heard.last and heard.last.free_bytes < LEAST_FREE_BYTES:
        left = heard.last.free_bytes
        yield f"The disk of this site is full ({left / 1e6:.0f} MB left). Jobs wait until space is freed."


def _format_span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
