"""How often one caller may do one thing: exact, in one statement, on the database's clock.

The bucket is a GCRA: `full_at` moves one interval ahead with every request and may be at most a whole window ahead of
now. The row lock of the upsert makes racing requests take turns, so no more than the limit ever pass.
"""

import math
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction

from backend.api.problems import TooManyRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    name: str
    limit: int
    window_s: int


# Far above what a person or a sweep does, far below what would hurt: a submit is one transaction of milliseconds.
SUBMITS = Rate(name="submit", limit=300, window_s=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What is left of a rate, in the words of draft-ietf-httpapi-ratelimit-headers."""

    rate: Rate
    remaining: int
    wait_s: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Policy": f'"{self.rate.name}";q={self.rate.limit};w={self.rate.window_s}',
            "RateLimit": f'"{self.rate.name}";r={self.remaining};t={self.wait_s}',
        }


class RateExceeded(TooManyRequests):
    """This caller asks too often; Retry-After says when to go on."""

    def __init__(self, allowance: Allowance) -> None:
        super().__init__()
        self.headers = allowance.headers | {"Retry-After": str(allowance.wait_s)}


_TAKE = """
INSERT INTO api_ratebucket AS bucket (name, full_at)
VALUES (%(name)s, clock_timestamp() + %(interval)s * interval '1 second')
ON CONFLICT (name) DO UPDATE
SET full_at = greatest(bucket.full_at, clock_timestamp()) + %(interval)s * interval '1 second'
WHERE greatest(bucket.full_at, clock_timestamp()) + %(interval)s * interval '1 second'
      <= clock_timestamp() + %(window)s * interval '1 second'
RETURNING full_at, clock_timestamp()
"""


def take(rate: Rate, *, caller: str) -> Allowance:
    """Counts one request. Raises `RateExceeded` if it is one too many."""
    interval = rate.window_s / rate.limit
    name = f"{rate.name}:{caller}"
    with transaction.atomic(), connection.cursor() as db:
        db.execute(_TAKE, {"name": name, "interval": interval, "window": rate.window_s})
        row: tuple[datetime, datetime] | None = db.fetchone()
        if row is None:
            db.execute("SELECT full_at, clock_timestamp() FROM api_ratebucket WHERE name = %s", [name])
            row = db.fetchone()
            assert row is not None, "a bucket is never removed while it is not full"
            wait = (row[0] - row[1]).total_seconds() + interval - rate.window_s
            raise RateExceeded(Allowance(rate=rate, remaining=0, wait_s=max(1, math.ceil(wait))))
    debt = max(0.0, (row[0] - row[1]).total_seconds())
    remaining = int((rate.window_s - debt) / interval + 1e-6)
    return Allowance(rate=rate, remaining=remaining, wait_s=math.ceil(debt))
