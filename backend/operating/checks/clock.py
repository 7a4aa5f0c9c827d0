"""Compares Postgres' clock with that of this process."""

import time
from collections.abc import Iterator
from typing import Final

import psycopg

from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, good

_PATIENCE_S: Final = 3
MOST_APART_S: Final = 2.0
"""Codes of a second factor last 30 s, requests to S3 15 minutes; a synchronized machine is within 0.1 s."""

APART = Fault(
    name="clock.apart",
    cure="Synchronize both machines with the same time servers (chrony or systemd-timesyncd); sessions, leases and "
    "second factors depend on it.",
)


def check_clock(environment: Environment) -> Iterator[Finding]:
    """An unreachable Postgres is reported by its own check."""
    try:
        with psycopg.connect(environment.database_url, connect_timeout=_PATIENCE_S) as db:
            before = time.time()
            row = db.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
            after = time.time()
    except psycopg.Error:
        return
    yield judge(float(row[0]) if row else 0.0, before, after, "Postgres")


def judge(reading: float, before: float, after: float, whose: str) -> Finding:
    """`reading` was taken between `before` and `after`; further outside than the tolerance, the clock is wrong."""
    apart = before - reading if reading < before else max(0.0, reading - after)
    if apart > MOST_APART_S:
        way = "behind" if reading < before else "ahead of"
        return APART.found(f"{whose} is {apart:.0f} s {way} this machine")
    return good(f"{whose} and this machine agree on the time")
