"""Health for load balancers and supervisors: /healthz (the process runs) and /readyz (its dependencies answer).

    Postgres, broker                    probed; without one of them pages cannot be served properly: 503
    beat, worker, pools' Rays, store    as last seen (`surroundings`): reported, with status 200

Invariants:
- the `problems` of a 503 state what is wrong and what to do, without addresses, names or passwords;
- failures that do not stop pages are reported in `warnings`, and take no web process out of service;
- the routes are open to anyone: a process probes once in `FRESH_S`, other requests get that probe's result, and a probe
  that found a problem is one line in the log;
- no request waits longer than `LONGEST_S`. A dependency that has not answered by then is reported as a problem, and is
  not probed again before it answers.
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
LONGEST_S: Final = 8.0  # a container's health check waits 10 s, and kills a process that does not answer
_PATIENCE_S = 2
Found = dict[str, Any]


class ReadinessProbe:
    """The last probe and its result. A request during a probe waits for its end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._result: Future[Found] | None = None
        self._began_at = self._stale_at = clock()

    def newest(self) -> tuple[Found, bool]:
        """The probe's result, and whether this call started the probe."""
        with self._guard:
            is_due = self._result is None or (self._result.done() and self._clock() >= self._stale_at)
            if self._result is None or is_due:
                self._result, self._began_at = Future(), self._clock()
                threading.Thread(target=self._run, args=[self._result], name="readiness", daemon=True).start()
            result, left_s = self._result, self._began_at + LONGEST_S - self._clock()
        try:
            return result.result(max(0.0, left_s)), is_due
        except TimeoutError:
            return _document([f"postgres or broker: did not respond within {LONGEST_S:.0f} s"]), is_due

    def _run(self, result: Future[Found]) -> None:
        try:
            document = _probe_parts()
        except BaseException as error:
            self._stale_at = self._clock() + FRESH_S
            result.set_exception(error)
            raise
        self._stale_at = self._clock() + FRESH_S
        result.set_result(document)


probe = ReadinessProbe()


def healthz(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    document, is_new = probe.newest()
    response = JsonResponse(document, status=503 if document["problems"] else 200)
    response._has_been_logged = not is_new  # type: ignore[attr-defined]  # Django's own flag: it logs every 503
    return response


def _probe_parts() -> Found:
    problems = {name: problem() for name, problem in _PARTS.items()}
    around = [] if problems["postgres"] else _read_surroundings()
    return (
        _document([f"{name}: {text}" for name, text in problems.items() if text])
        | {name: not text for name, text in problems.items()}
        | {each.name: each.is_well for each in around}
        | {f"{each.name}_age_s": each.age_s for each in around if each.age_s is not None}
        | {"warnings": [f"{each.name}: {each.trouble}" for each in around if each.trouble]}
    )


def _document(problems: list[str]) -> Found:
    return {"status": "unavailable" if problems else "ok", "problems": problems}


def _postgres() -> str:
    """Probes by its own connection: the pool would make it wait its five seconds."""
    try:
        with psycopg.connect(settings.ENVIRONMENT.database_url, connect_timeout=_PATIENCE_S) as db:
            row = db.execute("SELECT to_regclass('django_migrations') IS NOT NULL, pg_is_in_recovery()").fetchone()
    except psycopg.Error as error:
        trouble = trouble_with_certificate(error, "LAMINAR_DATABASE_URL")
        return trouble or "does not respond; check its log and LAMINAR_DATABASE_URL"
    has_tables, is_standby = row or (False, False)
    if not has_tables:
        return "has no tables yet; run `manage.py migrate`"
    return "is a standby, which accepts no writes" if is_standby else ""


def _read_surroundings() -> list[Surrounding]:
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
        return "" if client.ping() else "does not respond to a ping"
    except redis.RedisError as error:
        trouble = trouble_with_certificate(error, "LAMINAR_BROKER_URL")
        return trouble or "does not respond; check its log and LAMINAR_BROKER_URL"
    finally:
        client.close()


_PARTS: dict[str, Callable[[], str]] = {"postgres": _postgres, "broker": _broker}
