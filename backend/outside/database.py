"""Postgres: Django's settings, and the direct connection past a pooler for whatever outlives a transaction.

    pages, REST, background work ──▶ LAMINAR_DATABASE_URL (a pooler in transaction mode, or Postgres itself)
    LISTEN, migrations ────────────▶ LAMINAR_DATABASE_DIRECT_URL; if unset, the former is direct

Invariants:
- libpq interprets what follows an address' `?`, on every connection;
- through a pooler nothing is left on a server connection that another client would see or miss: no prepared statement,
  no cursor, no parameter. There, time limits are settings of the role, set on each migration.
"""

from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg.sql
from django.db import connection, connections

from backend.missing import MissingSetting

DIRECT: Final = "direct"
"""The alias of the direct connection; exists only with a pooler."""
TIME_LIMITS_MS: Final = {
    "statement_timeout": 20_000,
    "lock_timeout": 10_000,
    "idle_in_transaction_session_timeout": 30_000,
}
_POOL: Final = {"min_size": 1, "max_size": 12, "timeout": 5}


def databases(url: str, direct_url: str) -> dict[str, dict[str, object]]:
    """Django's `DATABASES`. Raises `MissingSetting`."""
    if not direct_url:
        return {"default": _build_server("LAMINAR_DATABASE_URL", url, _read_options(url) | _direct_options())}
    pooled = {"pool": dict(_POOL), "prepare_threshold": None}
    return {
        "default": _build_server("LAMINAR_DATABASE_URL", url, _read_options(url) | pooled)
        | {"DISABLE_SERVER_SIDE_CURSORS": True},
        DIRECT: _build_server("LAMINAR_DATABASE_DIRECT_URL", direct_url, _read_options(direct_url) | _direct_options())
        | {"TEST": {"MIRROR": "default"}},
    }


def direct_parameters() -> dict[str, Any]:
    """Parameters of a separate connection outside the pool, past any pooler."""
    parameters = connections[DIRECT if DIRECT in connections.settings else "default"].get_connection_params()
    of_django = {"context", "cursor_factory"}
    return {name: value for name, value in parameters.items() if name not in of_django}


def go_direct() -> bool:
    """Makes this process bypass the pooler, if there is one. Call it before the first query."""
    has_pooler = DIRECT in connections.settings
    if has_pooler:
        connections["default"].close()
        connections.settings["default"] = connections.settings[DIRECT]
        del connections["default"]
    return has_pooler


def set_time_limits() -> None:
    """Sets them for the role in this database, since a pooler does not pass parameters on."""
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


def _direct_options() -> dict[str, object]:
    """One pool per process. Two background threads (hub, dispatcher) hold connections outside it."""
    return {
        "pool": dict(_POOL),
        "prepare_threshold": 3,  # of what goes through `backend.prepared_queries`, and of nothing else
        "options": " ".join(f"-c {name}={limit}" for name, limit in TIME_LIMITS_MS.items()),
    }


def _build_server(setting: str, url: str, options: dict[str, object]) -> dict[str, object]:
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


def _read_options(url: str) -> dict[str, object]:
    """The options after the `?`, such as sslmode=verify-full, without which nothing would be checked."""
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
