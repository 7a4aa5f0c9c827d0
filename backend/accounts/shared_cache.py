"""Django's cache on Postgres, for allauth's rate limits: shared by all web processes.

Invariants:
- `add` is one statement, so of racing processes exactly one gets a lock;
- values are JSON, never pickles;
- without Postgres the exception propagates and every sign-in fails: limits fail closed.

It is small and slow on purpose. Do not use it for pages or the API.
"""

import json
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.db import connection

_SWEEP_LIMIT = 20  # expired rows that each write deletes, which saves a background task

_ADD = """
INSERT INTO accounts_sharedentry AS entry (key, value, expires_at)
VALUES (%s, %s, clock_timestamp() + %s * interval '1 second')
ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
WHERE entry.expires_at <= clock_timestamp()
"""
_SET = """
INSERT INTO accounts_sharedentry (key, value, expires_at)
VALUES (%s, %s, clock_timestamp() + %s * interval '1 second')
ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
"""
_GET = """
SELECT value FROM accounts_sharedentry WHERE key = %s AND (expires_at IS NULL OR expires_at > clock_timestamp())
"""
_TOUCH = "UPDATE accounts_sharedentry SET expires_at = clock_timestamp() + %s * interval '1 second' WHERE key = %s"
_SWEEP = """
DELETE FROM accounts_sharedentry WHERE key IN (
    SELECT key FROM accounts_sharedentry WHERE expires_at <= clock_timestamp() LIMIT %s FOR UPDATE SKIP LOCKED
)
"""


class SharedCache(BaseCache):
    def __init__(self, name: str, params: dict[str, Any]) -> None:
        super().__init__(params)

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        return self._write(_ADD, key, value, timeout, version) == 1

    def set(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        self._write(_SET, key, value, timeout, version)

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        with connection.cursor() as db:
            db.execute(_GET, [self.make_and_validate_key(key, version=version)])
            row = db.fetchone()
        return default if row is None else json.loads(row[0])

    def delete(self, key: str, version: int | None = None) -> bool:
        with connection.cursor() as db:
            db.execute(
                "DELETE FROM accounts_sharedentry WHERE key = %s", [self.make_and_validate_key(key, version=version)]
            )
            return bool(db.rowcount == 1)

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        with connection.cursor() as db:
            db.execute(_TOUCH, [self._lasts_s(timeout), self.make_and_validate_key(key, version=version)])
            return bool(db.rowcount == 1)

    def clear(self) -> None:
        with connection.cursor() as db:
            db.execute("DELETE FROM accounts_sharedentry")

    def _write(self, statement: str, key: str, value: Any, timeout: Any, version: int | None) -> int:
        full_key = self.make_and_validate_key(key, version=version)
        with connection.cursor() as db:
            db.execute(statement, [full_key, json.dumps(value), self._lasts_s(timeout)])
            num_written: int = db.rowcount
            db.execute(_SWEEP, [_SWEEP_LIMIT])
        return num_written

    def _lasts_s(self, timeout: Any) -> float | None:
        return self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
