"""Health for load balancers and supervisors: /healthz (this process runs) and /readyz (what it needs answers)."""

import psycopg
import redis
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse

_PATIENCE_S = 2


def healthz(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    parts = {"postgres": _postgres_answers(), "broker": _broker_answers()}
    ready = all(parts.values())
    return JsonResponse({"status": "ok" if ready else "unavailable"} | parts, status=200 if ready else 503)


def _postgres_answers() -> bool:
    """By a connection of its own: the pool would make a probe wait its ten seconds."""
    try:
        with psycopg.connect(settings.ENVIRONMENT.database_url, connect_timeout=_PATIENCE_S) as db:
            return db.execute("SELECT 1").fetchone() == (1,)
    except psycopg.Error:
        return False


def _broker_answers() -> bool:
    client = redis.Redis.from_url(
        settings.CELERY_BROKER_URL, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S
    )
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()
