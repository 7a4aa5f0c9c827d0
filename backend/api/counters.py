"""How often one may do one thing: exact over all processes, in one statement, on the database's clock.

    take("sign-in", "alice@example.org", limit=5, window_s=300) ──▶ Allowance(allowed=True, remaining=4, …)

A bucket is a GCRA, a leaky bucket in one timestamp: `full_at` moves one interval (window / limit) ahead with each use
and may be at most a whole window ahead of now.

Invariants:
- the row lock of the upsert makes racing callers take turns: at most `limit` pass at once, and over any time t at most
  limit * (1 + t / window);
- a refused use counts nothing, so hammering does not prolong the wait;
- without Postgres there is no answer but an exception, never an "allowed": limits fail closed. Valkey plays no part
  (decisions.md says why);
- what is counted is a hash where it is not a plain word, so no address or mail stands in the table and no hostile text
  reaches it.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from asgiref.sync import sync_to_async
from django.db import connection

from backend.api.models import RateBucket

_PLAIN = re.compile(r"[0-9A-Za-z_.-]{1,64}", re.ASCII)

_TAKE = """
INSERT INTO api_ratebucket AS bucket (name, full_at)
VALUES (%(name)s, clock_timestamp() + %(interval)s * interval '1 second')
ON CONFLICT (name) DO UPDATE
SET full_at = greatest(bucket.full_at, clock_timestamp()) + %(interval)s * interval '1 second'
WHERE greatest(bucket.full_at, clock_timestamp()) + %(interval)s * interval '1 second'
      <= clock_timestamp() + %(window)s * interval '1 second'
RETURNING full_at, clock_timestamp()
"""
_LOOK = "SELECT full_at, clock_timestamp() FROM api_ratebucket WHERE name = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What is left, in the words of draft-ietf-httpapi-ratelimit-headers.

    `wait_s`: of an allowed use, seconds until the bucket is full again; of a refused one, until the next may pass.
    """

    bucket: str
    limit: int
    window_s: int
    allowed: bool
    remaining: int
    wait_s: int

    @property
    def headers(self) -> dict[str, str]:
        told = {
            "RateLimit-Policy": f'"{self.bucket}";q={self.limit};w={self.window_s}',
            "RateLimit": f'"{self.bucket}";r={self.remaining};t={self.wait_s}',
        }
        return told if self.allowed else told | {"Retry-After": str(self.wait_s)}


def take(bucket: str, key: str, limit: int, window_s: int) -> Allowance:
    """Counts one use by `key`. Outside a transaction that may roll back, or the use is forgotten with it."""
    assert limit > 0 and window_s > 0, "a bucket without room lets nobody through"
    interval = window_s / limit
    name = f"{bucket}:{key if _PLAIN.fullmatch(key) else hashlib.sha256(key.encode(errors='replace')).hexdigest()}"
    with connection.cursor() as db:
        db.execute(_TAKE, {"name": name, "interval": interval, "window": window_s})
        taken: tuple[datetime, datetime] | None = db.fetchone()
        if taken is None:
            db.execute(_LOOK, [name])
            found: tuple[datetime, datetime] | None = db.fetchone()
            wait = _seconds(found) + interval - window_s if found else 0.0  # forgotten between the two statements
            return _allowance(bucket, limit, window_s, allowed=False, remaining=0, wait_s=max(1.0, wait))
    debt = max(0.0, _seconds(taken))
    remaining = int((window_s - debt) / interval + 1e-6)
    return _allowance(bucket, limit, window_s, allowed=True, remaining=remaining, wait_s=debt)


atake = sync_to_async(take)
"""The same for async views and consumers."""


def forget_full_buckets(*, now: datetime) -> int:
    """A bucket that is full again says no more than none at all."""
    return RateBucket.objects.filter(full_at__lt=now - timedelta(minutes=1)).delete()[0]


def _allowance(bucket: str, limit: int, window_s: int, *, allowed: bool, remaining: int, wait_s: float) -> Allowance:
    return Allowance(
        bucket=bucket, limit=limit, window_s=window_s, allowed=allowed, remaining=remaining, wait_s=math.ceil(wait_s)
    )


def _seconds(pair: tuple[datetime, datetime]) -> float:
    return (pair[0] - pair[1]).total_seconds()
