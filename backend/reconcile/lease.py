"""One reconciler at a time; a late one is harmless.

Invariants:
- the lease's time is Postgres' alone;
- each holder has its own fence, also after a restore of the database, and every write first proves in its own
  transaction that this fence still holds: a reconciler that was frozen changes nothing when it resumes;
- a holder stops by its own monotonic clock at two thirds of the lease, so the fence is rarely needed.
"""

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection

NAME = "reconcile"
TTL_S = 30.0


class LeaseLost(RuntimeError):
    """Another process has the lease now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    owner: str
    fence: int
    stop_at: float
    """On this process' monotonic clock."""

    @property
    def is_almost_over(self) -> bool:
        return time.monotonic() >= self.stop_at


@contextmanager
def reconcile_lease(ttl_s: float = TTL_S) -> Iterator[Lease | None]:
    """None while another process has it."""
    stop_at = time.monotonic() + ttl_s * 2 / 3
    owner = f"{socket.gethostname()[:30]}:{os.getpid()}:{secrets.token_hex(8)}"
    fence = _take(owner, ttl_s)
    if fence is None:
        yield None
        return
    try:
        yield Lease(owner=owner, fence=fence, stop_at=stop_at)
    finally:
        _release(fence)


def prove(lease: Lease) -> None:
    """Call this in the transaction to be fenced; the row stays share-locked until it ends."""
    with connection.cursor() as db:
        db.execute(
            "SELECT 1 FROM jobs_reconcilelease WHERE name = %s AND fence = %s AND expires_at > clock_timestamp()"
            " FOR SHARE",
            [NAME, lease.fence],
        )
        if db.fetchone() is None:
            raise LeaseLost(f"fence {lease.fence} has expired")


def _take(owner: str, ttl_s: float) -> int | None:
    with connection.cursor() as db:
        db.execute(
            "INSERT INTO jobs_reconcilelease AS lease (name, owner, fence, expires_at)"
            " VALUES (%s, %s, 1, clock_timestamp() + make_interval(secs => %s))"
            " ON CONFLICT (name) DO UPDATE SET owner = excluded.owner,"
            " fence = greatest(lease.fence, (SELECT number FROM jobs_generation)) + 1,"
            " expires_at = excluded.expires_at WHERE lease.expires_at <= clock_timestamp() RETURNING fence",
            [NAME, owner, ttl_s],
        )
        row: tuple[int] | None = db.fetchone()
    return row[0] if row else None


def _release(fence: int) -> None:
    with connection.cursor() as db:
        db.execute(
            "UPDATE jobs_reconcilelease SET expires_at = clock_timestamp() WHERE name = %s AND fence = %s",
            [NAME, fence],
        )
