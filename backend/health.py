"""Health for load balancers and supervisors: /healthz (this process runs) and /readyz (what it needs answers).

Invariants:
- whoever reads a 503 reads in `problems` what is wrong and what to do; no address, name or password is told;
- what pages do not need to be served is told in `warnings`, and takes no web process out of service;
- anybody may ask: a process looks once in `FRESH_S`, whoever asks meanwhile is answered from that look, and a look that
  found something wrong is one line in the log.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import redis
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse

from backend.pulses import AGES, LATE_AFTER_S, PULSES

FRESH_S: Final = 1.0
_PATIENCE_S = 2


class Looks:
    """The last look, and what it found. Who comes while one is under way waits for its end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._found: dict[str, Any] = {}
        self._stale_at = clock()

    def newest(self) -> tuple[dict[str, Any], bool]:
        """What was found, and whether it was found for this very caller."""
        with self._guard:
            is_due = self._clock() >= self._stale_at
            if is_due:
                self._found = _look()
                self._stale_at = self._clock() + FRESH_S
            return self._found, is_due


looks = Looks()


def healthz(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    found, is_new = looks.newest()
    answer = JsonResponse(found, status=503 if found["problems"] else 200)
    answer._has_been_logged = not is_new  # type: ignore[attr-defined]  # Django's own mark: it logs every 503
    return answer


def _look() -> dict[str, Any]:
    wrong = {name: problem() for name, problem in _PARTS.items()}
    problems = [f"{name}: {text}" for name, text in wrong.items() if text]
    document = {"status": "unavailable" if problems else "ok", "problems": problems}
    parts = {name: not text for name, text in wrong.items()} | {"warnings": list(_warnings())}
    return document | parts


def _postgres() -> str:
    """By a connection of its own: the pool would make a probe wait its five seconds."""
    try:
        with psycopg.connect(settings.ENVIRONMENT.database_url, connect_timeout=_PATIENCE_S) as db:
            row = db.execute("SELECT to_regclass('django_migrations') IS NOT NULL, pg_is_in_recovery()").fetchone()
    except psycopg.Error:
        return "does not answer; see its log, and LAMINAR_DATABASE_URL"
    has_tables, is_standby = row or (False, False)
    if not has_tables:
        return "has no tables yet; run `manage.py migrate`"
    return "is a standby, which takes no writes" if is_standby else ""


def _warnings() -> Iterator[str]:
    """Background work that stands still."""
    try:
        with psycopg.connect(settings.ENVIRONMENT.database_url, connect_timeout=_PATIENCE_S) as db:
            age = {name: float(age) for name, age in db.execute(AGES, [list(PULSES.values())])}
    except psycopg.Error:
        return
    for part, name in PULSES.items():
        if name not in age:
            yield f"{part}: has not been heard of yet; see its log"
        elif age[name] > LATE_AFTER_S:
            yield f"{part}: has not been heard of for {age[name]:.0f} s; see its log, and the broker's"


def _broker() -> str:
    client = redis.Redis.from_url(
        settings.CELERY_BROKER_URL, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S
    )
    try:
        return "" if client.ping() else "does not answer a ping"
    except redis.RedisError:
        return "does not answer; see its log, and LAMINAR_BROKER_URL"
    finally:
        client.close()


_PARTS: dict[str, Callable[[], str]] = {"postgres": _postgres, "broker": _broker}
