"""The time, by the one clock that all processes share.

Invariant: leases, deadlines and silences are judged by Postgres' time, so a process with a wrong clock fences nobody.
"""

from collections.abc import Callable
from datetime import datetime

from django.db import connection

Clock = Callable[[], datetime]


def database_now() -> datetime:
    """`clock_timestamp()`, not `now()`: the latter stands still inside a transaction."""
    with connection.cursor() as db:
        db.execute("SELECT clock_timestamp()")
        row: tuple[datetime] = db.fetchone()
    return row[0]
