"""Rate limits: exact across processes, in one statement, by the database's clock.

    take("sign-in", "alice@example.org", limit=5, window_s=300) ──▶ Allowance(allowed=True, remaining=4, …)
    take_in_turn([Use("write", …), Use("submit", …)])           ──▶ the same of both, in one statement

A bucket is a GCRA, a leaky bucket in one timestamp: each use moves `full_at` one interval (window / limit) ahead, to at
most a whole window ahead of now. A use that counts as several moves it by as many intervals, and by the whole window if
it counts as more than the limit.

Invariants:
- the row lock of the upsert serializes concurrent callers: at most `limit` pass at once, and over any time t at most
  limit * (1 + t / window);
- a refused use is not counted, so retrying does not prolong the wait; of several buckets, those after the refusing one
  are left unchanged;
- without Postgres the result is an exception, never an "allowed": limits fail closed. Valkey is not involved
  (decisions.md gives the reasons);
- a key that is not a plain word is hashed, so the table holds no e-mail address and no hostile text.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from asgiref.sync import sync_to_async
from django.db import connection

from backend.api.models import RateBucket

_PLAIN = re.compile(r"[0-9A-Za-z_.-]{1,64}", re.ASCII)

_TAKE = """taken_{at} AS (
    INSERT INTO api_ratebucket AS bucket (name, full_at)
    SELECT %s, clock_timestamp() + %s * interval '1 second' {only_if}
    ON CONFLICT (name) DO UPDATE
    SET full_at = greatest(bucket.full_at, clock_timestamp()) + %s * interval '1 second'
    WHERE greatest(bucket.full_at, clock_timestamp()) + %s * interval '1 second'
          <= clock_timestamp() + %s * interval '1 second'
    RETURNING full_at
)"""
_GIVE_BACK = "UPDATE api_ratebucket SET full_at = full_at - %s * interval '1 second' WHERE name = %s"
_LOOK = "SELECT full_at, clock_timestamp() FROM api_ratebucket WHERE name = %s"


@dataclass(frozen=True, slots=True)
class Use:
    bucket: str
    key: str
    limit: int
    window_s: int
    num: int = 1
    """How many uses this one counts as."""

    def __post_init__(self) -> None:
        assert self.limit > 0 and self.window_s > 0, "a bucket without room refuses everything"
        assert self.num > 0, "a use counts at least once"

    @property
    def interval(self) -> float:
        return self.window_s / self.limit

    @property
    def ahead_s(self) -> float:
        """Seconds that `full_at` moves."""
        return self.interval * min(self.num, self.limit)

    @property
    def name(self) -> str:
        key = self.key
        if not _PLAIN.fullmatch(key):
            key = hashlib.sha256(key.encode(errors="replace")).hexdigest()
        return f"{self.bucket}:{key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The state of a bucket after a use, in the terms of draft-ietf-httpapi-ratelimit-headers.

    `wait_s`: of an allowed use, seconds until the bucket is full again; of a refused one, until the next may pass.
    """

    bucket: str
    limit: int
    window_s: int
    allowed: bool
    remaining: int
    wait_s: int
    at: datetime
    """When the use was counted, by the database's clock."""

    @property
    def headers(self) -> dict[str, str]:
        headers = {
            "RateLimit-Policy": f'"{self.bucket}";q={self.limit};w={self.window_s}',
            "RateLimit": f'"{self.bucket}";r={self.remaining};t={self.wait_s}',
        }
        return headers if self.allowed else headers | {"Retry-After": str(self.wait_s)}


def take(bucket: str, key: str, limit: int, window_s: int) -> Allowance:
    """Counts one use by `key`. Call it outside a transaction that may roll back, or the use is not counted."""
    return take_in_turn([Use(bucket, key, limit, window_s)])[-1]


def give_back(bucket: str, key: str, limit: int, window_s: int) -> None:
    """Takes one counted use back. Uses by others, and earlier ones, remain counted."""
    use = Use(bucket, key, limit, window_s)
    with connection.cursor() as db:
        db.execute(_GIVE_BACK, [use.ahead_s, use.name])


def reset(bucket: str, key: str, limit: int, window_s: int) -> None:
    """Removes every use by `key`."""
    RateBucket.objects.filter(name=Use(bucket, key, limit, window_s).name).delete()


def take_in_turn(uses: Sequence[Use]) -> list[Allowance]:
    """Counts one use in each bucket until one refuses: the last allowance is the refusal, if there is one.

    Callers that take from several buckets list them in the same order, so that they cannot deadlock.
    """
    parameters: list[str | float] = []
    for use in uses:
        parameters += [use.name, use.ahead_s, use.ahead_s, use.ahead_s, use.window_s]
    with connection.cursor() as db:
        db.execute(_statement(len(uses)), parameters)
        *taken, at = db.fetchone()
        num_passed = sum(full_at is not None for full_at in taken)
        allowances = [_allow_use(use, full_at, at) for use, full_at in zip(uses, taken[:num_passed], strict=False)]
        if num_passed < len(uses):
            refusing = uses[num_passed]
            db.execute(_LOOK, [refusing.name])
            row: tuple[datetime, datetime] | None = db.fetchone()
            # None: the row was deleted between the two statements
            wait_s = _seconds_between(*row) + refusing.ahead_s - refusing.window_s if row else 0.0
            allowances.append(_make_allowance(refusing, allowed=False, remaining=0, wait_s=max(1.0, wait_s), at=at))
    return allowances


@cache
def _statement(num_uses: int) -> str:
    parts = [_TAKE.format(at=at, only_if=f"FROM taken_{at - 1}" if at else "") for at in range(num_uses)]
    columns = ", ".join(f"(SELECT full_at FROM taken_{at})" for at in range(num_uses))  # noqa: S608  # integers only
    return f"WITH {', '.join(parts)} SELECT {columns}, clock_timestamp()"


atake = sync_to_async(take)
"""The same for async views and consumers."""


def forget_full_buckets(*, now: datetime) -> int:
    """Deletes buckets that are full again, which is equal to having none."""
    return RateBucket.objects.filter(full_at__lt=now - timedelta(minutes=1)).delete()[0]


def _allow_use(use: Use, full_at: datetime, at: datetime) -> Allowance:
    debt_s = max(0.0, _seconds_between(full_at, at))
    remaining = int((use.window_s - debt_s) / use.interval + 1e-6)
    return _make_allowance(use, allowed=True, remaining=remaining, wait_s=debt_s, at=at)


def _make_allowance(use: Use, *, allowed: bool, remaining: int, wait_s: float, at: datetime) -> Allowance:
    return Allowance(
        bucket=use.bucket,
        limit=use.limit,
        window_s=use.window_s,
        allowed=allowed,
        remaining=remaining,
        wait_s=math.ceil(wait_s),
        at=at,
    )


def _seconds_between(later: datetime, earlier: datetime) -> float:
    return (later - earlier).total_seconds()
