"""The time, by the clock that all processes share.

Invariant: leases, deadlines and timeouts use Postgres' time, so a process with a wrong clock fences no other.
"""

from collections.abc import Callable
from datetime import datetime

from django.db import connection

Clock = Callable[[], datetime]


def database_now() -> datetime:
    """`clock_timestamp()`, not `now()`: the latter is constant inside a transaction."""
    with connection.cursor() as db:
        db.execute("SELECT clock_timestamp()")
        row: tuple[datetime] = db.fetchone()
    return row[0]
