"""Health for load balancers and supervisors: /healthz (this process runs) and /readyz (what it needs answers).

    Postgres, broker                    asked; without one of them pages cannot be served as they should: 503
    beat, worker, pools' Rays, store    as last seen (`surroundings`): told, and 200 all the same

Invariants:
- whoever reads a 503 reads in `problems` what is wrong and what to do; no address, name or password is told;
- what pages do not need to be served is told in `warnings`, and takes no web process out of service;
- anybody may ask: a process looks once in `FRESH_S`, whoever asks meanwhile is answered from that look, and a look that
  found something wrong is one line in the log;
- nobody waits for longer than `LONGEST_S`. What has not answered by then is wrong, and is not asked a second time
  before it has.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import psycopg
import redis
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse

from backend.outside.trust import trouble_with_certificate
from backend.surroundings import Surrounding, surroundings

FRESH_S: Final = 1.0
LONGEST_S: Final = 8.0  # a container's health check waits 10 s, and takes silence for a reason to end this process
_PATIENCE_S = 2
Found = dict[str, Any]


class Looks:
    """The last look, and what it found. Who comes while one is under way waits for its end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._look: Future[Found] | None = None
        self._began_at = self._stale_at = clock()

    def newest(self) -> tuple[Found, bool]:
        """What was found, and whether it was found for this very caller."""
        with self._guard:
            is_due = self._look is None or (self._look.done() and self._clock() >= self._stale_at)
            if self._look is None or is_due:
                self._look, self._began_at = Future(), self._clock()
                threading.Thread(target=self._run, args=[self._look], name="readiness", daemon=True).start()
            look, left_s = self._look, self._began_at + LONGEST_S - self._clock()
        try:
            return look.result(max(0.0, left_s)), is_due
        except TimeoutError:
            return _document([f"postgres or broker: has not answered within {LONGEST_S:.0f} s"]), is_due

    def _run(self, look: Future[Found]) -> None:
        try:
            found = _look()
        except BaseException as error:
            self._stale_at = self._clock() + FRESH_S
            look.set_exception(error)
            raise
        self._stale_at = self._clock() + FRESH_S
        look.set_result(found)


looks = Looks()


def healthz(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    found, is_new = looks.newest()
    answer = JsonResponse(found, status=503 if found["problems"] else 200)
    answer._has_been_logged = not is_new  # type: ignore[attr-defined]  # Django's own mark: it logs every 503
    return answer


def _look() -> Found:
    wrong = {name: problem() for name, problem in _PARTS.items()}
    around = [] if wrong["postgres"] else _around()
    return (
        _document([f"{name}: {text}" for name, text in wrong.items() if text])
        | {name: not text for name, text in wrong.items()}
        | {each.name: each.is_well for each in around}
        | {f"{each.name}_age_s": each.age_s for each in around if each.age_s is not None}
        | {"warnings": [f"{each.name}: {each.trouble}" for each in around if each.trouble]}
    )


def _document(problems: list[str]) -> Found:
    return {"status": "unavailable" if problems else "ok", "problems": problems}


def _postgres() -> str:
    """By a connection of its own: the pool would make a probe wait its five seconds."""
    try:
        with psycopg.connect(settings.ENVIRONMENT.database_url, connect_timeout=_PATIENCE_S) as db:
            row = db.execute("SELECT to_regclass('django_migrations') IS NOT NULL, pg_is_in_recovery()").fetchone()
    except psycopg.Error as error:
        trouble = trouble_with_certificate(error, "LAMINAR_DATABASE_URL")
        return trouble or "does not answer; see its log, and LAMINAR_DATABASE_URL"
    has_tables, is_standby = row or (False, False)
    if not has_tables:
        return "has no tables yet; run `manage.py migrate`"
    return "is a standby, which takes no writes" if is_standby else ""


def _around() -> list[Surrounding]:
    try:
        with psycopg.connect(settings.ENVIRONMENT.database_url, connect_timeout=_PATIENCE_S) as db:
            return list(surroundings(db))
    except psycopg.Error:
        return []


def _broker() -> str:
    client = redis.Redis.from_url(
        settings.CELERY_BROKER_URL, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S
    )
    try:
        return "" if client.ping() else "does not answer a ping"
    except redis.RedisError as error:
        trouble = trouble_with_certificate(error, "LAMINAR_BROKER_URL")
        return trouble or "does not answer; see its log, and LAMINAR_BROKER_URL"
    finally:
        client.close()


_PARTS: dict[str, Callable[[], str]] = {"postgres": _postgres, "broker": _broker}
