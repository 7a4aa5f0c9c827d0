"""Announced maintenance, for a banner on every page.

Invariants:
- a process queries the database at most once in `QUERY_EVERY_S`, and an error never breaks a page;
- anonymous visitors see no announcements.
"""

import threading
import time
from collections.abc import Sequence
from typing import Final

from django.db import DatabaseError, InterfaceError, transaction
from django.http import HttpRequest

from backend.clock import database_now
from backend.pools.maintenance import announced
from backend.pools.models import Maintenance

QUERY_EVERY_S: Final = 5.0


class LatestAnnouncements:
    """The announcements as of the last query."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._due_at = 0.0
        self._known: Sequence[Maintenance] = ()

    def newest(self) -> Sequence[Maintenance]:
        with self._guard:
            is_due = time.monotonic() >= self._due_at
            if is_due:
                self._due_at = time.monotonic() + QUERY_EVERY_S
        if is_due:
            try:
                with transaction.atomic():
                    self._known = list(announced(database_now()))
            except (DatabaseError, InterfaceError):
                self._known = ()
        return self._known

    def forget(self) -> None:
        """Called in the process that changed an announcement, so that the next page shows the change."""
        self._due_at = 0.0


latest: Final = LatestAnnouncements()


def announcements(request: HttpRequest) -> dict[str, Sequence[Maintenance]]:
    """The context processor."""
    user = getattr(request, "user", None)
    return {"announcements": latest.newest() if user is not None and user.is_authenticated else ()}
