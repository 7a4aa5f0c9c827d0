"""Postgres: Django's settings of it, and the way around a pooler for what lives longer than a transaction.

    pages, REST, background work ──▶ LAMINAR_DATABASE_URL (a pooler in transaction mode, or Postgres itself)
    LISTEN, migrations ────────────▶ LAMINAR_DATABASE_DIRECT_URL; where it is not set, the former is direct

Invariants:
- what stands behind an address' `?` is libpq's to judge, on every connection that is made;
- through a pooler nothing is left on a server's connection that another client would find or miss: no prepared
  statement, no cursor, no parameter. Time limits are the role's own there, set each time that we migrate.
"""

from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg.sql
from django.db import connection, connections

from backend.missing import MissingSetting

DIRECT: Final = "direct"
"""The alias of the way around the pooler; not there where there is no pooler."""
TIME_LIMITS_MS: Final = {
    "statement_timeout": 20_000,
    "lock_timeout": 10_000,
    "idle_in_transaction_session_timeout": 30_000,
}
_POOL: Final = {"min_size": 1, "max_size": 12, "timeout": 5}


def databases(url: str, direct_url: str) -> dict[str, dict[str, object]]:
    """Django's `DATABASES`. Raises `MissingSetting`."""
    if not direct_url:
        return {"default": _server("LAMINAR_DATABASE_URL", url, _options(url) | _alone())}
    pooled = {"pool": dict(_POOL), "prepare_threshold": None}
    return {
        "default": _server("LAMINAR_DATABASE_URL", url, _options(url) | pooled) | {"DISABLE_SERVER_SIDE_CURSORS": True},
        DIRECT: _server("LAMINAR_DATABASE_DIRECT_URL", direct_url, _options(direct_url) | _alone())
        | {"TEST": {"MIRROR": "default"}},
    }


def direct_parameters() -> dict[str, Any]:
    """For a connection of one's own beside the pool, past any pooler."""
    made = connections[DIRECT if DIRECT in connections.settings else "default"].get_connection_params()
    of_django = {"context", "cursor_factory"}
    return {name: value for name, value in made.items() if name not in of_django}


def go_direct() -> bool:
    """This process speaks past the pooler from now on, if there is one. To be called before it has asked anything."""
    has_pooler = DIRECT in connections.settings
    if has_pooler:
        connections["default"].close()
        connections.settings["default"] = connections.settings[DIRECT]
        del connections["default"]
    return has_pooler


def set_time_limits() -> None:
    """As the role's own in this database: a pooler hands no parameter of ours on."""
    with connection.cursor() as db:
        for name, limit in {**TIME_LIMITS_MS, "timezone": "UTC"}.items():
            setting = [
                psycopg.sql.SQL("ALTER ROLE CURRENT_USER IN DATABASE"),
                psycopg.sql.Identifier(connection.settings_dict["NAME"]),
                psycopg.sql.SQL("SET"),
                psycopg.sql.Identifier(name),
                psycopg.sql.SQL("="),
                psycopg.sql.Literal(str(limit)),
            ]
            db.execute(psycopg.sql.SQL(" ").join(setting))


def _alone() -> dict[str, object]:
    """One pool a process. Two background threads (hub, dispatcher) hold connections of their own beside it."""
    return {
        "pool": dict(_POOL),
        "prepare_threshold": 3,  # of what goes through `backend.prepared_queries`, and of nothing else
        "options": " ".join(f"-c {name}={limit}" for name, limit in TIME_LIMITS_MS.items()),
    }


def _server(setting: str, url: str, options: dict[str, object]) -> dict[str, object]:
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"} or not parts.hostname or not parts.path.strip("/"):
        raise MissingSetting(f"{setting} must look like postgresql://user:password@host:port/name")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": parts.hostname,
        "PORT": str(parts.port or 5432),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "NAME": unquote(parts.path.strip("/")),
        "OPTIONS": options,
        "CONN_HEALTH_CHECKS": True,
    }


def _options(url: str) -> dict[str, object]:
    """What stands behind the `?`. Left out in silence, verify-full would mean no check at all."""
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
