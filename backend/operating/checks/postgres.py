"""Postgres: does it answer, is it new enough and one's own, is the way to it closed, are its tables as we need them?

Behind a pooler both addresses are looked at: Postgres itself for all of this, the pooler for its way and its limits.
"""

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, Verdict, good
from backend.operating.checks.near import is_near

_PATIENCE_S: Final = 3
_NEIGHBOURS: Final = 2  # beside the first, to see whether it keeps its server process

UNREACHABLE = Fault(
    name="postgres.unreachable",
    cure="Start Postgres (or the pooler before it), and see to address, user and password in that setting; its own log "
    "says more.",
)
OLD = Fault(name="postgres.old", cure="Upgrade Postgres; Laminar is tested with 18.")
ENCODING = Fault(
    name="postgres.encoding",
    cure="Names and texts in other letters go wrong there: make a database with CREATE DATABASE … ENCODING 'UTF8' "
    "TEMPLATE template0, and move what is there by pg_dump.",
)
PLAIN = Fault(
    name="postgres.plain",
    cure="Whoever is on the way reads and changes everything: switch TLS on in Postgres, and put ?sslmode=verify-full "
    "at the end of that setting.",
)
STANDBY = Fault(
    name="postgres.standby", cure="Name the server that takes writes there (target_session_attrs=read-write)."
)
POOLER = Fault(
    name="postgres.pooler",
    cure="Connections change hands after every transaction, which LISTEN and settings of a session do not survive: "
    "name Postgres itself in LAMINAR_DATABASE_DIRECT_URL beside it, or set the pooler to pool_mode=session.",
)
APART = Fault(
    name="postgres.apart",
    cure="Pages would hear nothing, and migrations change another database: let LAMINAR_DATABASE_URL (the pooler) and "
    "LAMINAR_DATABASE_DIRECT_URL lead to one database of one server.",
)
NO_LIMITS = Fault(
    name="postgres.no_limits",
    verdict=Verdict.WARNING,
    cure="A statement through the pooler may run for ever: run `python manage.py migrate`, which sets time limits as "
    "the account's own, with the account that the pooler signs in as.",
)
SUPERUSER = Fault(
    name="postgres.superuser",
    verdict=Verdict.WARNING,
    cure="Laminar needs a user that owns its database and no more: CREATE ROLE laminar LOGIN; ALTER DATABASE … OWNER "
    "TO laminar.",
)
UNMIGRATED = Fault(
    name="postgres.unmigrated", cure="Run `python manage.py migrate` (with containers: the service migrate)."
)


def look_at_postgres(environment: Environment) -> Iterator[Finding]:
    """The one that keeps sessions: LISTEN and migrations go there."""
    pooled, direct = environment.database_url, environment.database_direct_url
    setting = "LAMINAR_DATABASE_DIRECT_URL" if direct else "LAMINAR_DATABASE_URL"
    try:
        with psycopg.connect(
            direct or pooled, connect_timeout=_PATIENCE_S, autocommit=True, client_encoding="utf8"
        ) as first:
            yield from _server(first)
            yield _way(first, direct or pooled, setting)
            yield _own_session(first, direct or pooled)
            yield _tables()
            if direct:
                yield from _through_pooler(pooled, _place(first))
    except psycopg.Error as error:
        yield UNREACHABLE.found(f"{setting}: {error}")


def _through_pooler(url: str, place: tuple[Any, ...]) -> Iterator[Finding]:
    try:
        with psycopg.connect(
            url, connect_timeout=_PATIENCE_S, autocommit=True, prepare_threshold=None, client_encoding="utf8"
        ) as pooled:
            yield _way(pooled, url, "LAMINAR_DATABASE_URL")
            yield (
                good("the pooler leads to the same database")
                if _place(pooled) == place
                else APART.found("the pooler leads to another database than the direct address")
            )
            row = pooled.execute("SELECT current_setting('statement_timeout')").fetchone()
            if row is None or row[0] == "0":
                yield NO_LIMITS.found("through the pooler statements have no time limit")
    except psycopg.Error as error:
        yield UNREACHABLE.found(f"LAMINAR_DATABASE_URL, the pooler: {error}")


def _place(one: psycopg.Connection[Any]) -> tuple[Any, ...]:
    """What no other database of no other server has: when that server began, and the database's number."""
    row = one.execute(
        "SELECT pg_postmaster_start_time(), oid FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    return tuple(row or ())


def _server(first: psycopg.Connection[Any]) -> Iterator[Finding]:
    row = first.execute(
        "SELECT current_setting('server_version'), current_setting('server_encoding'), pg_is_in_recovery(), rolsuper "
        "FROM pg_roles WHERE rolname = current_user"
    ).fetchone()
    version, encoding, is_standby, is_superuser = row or ("0", "", False, False)
    yield judge_version(version)
    if encoding != "UTF8":
        yield ENCODING.found(f"the database's encoding is {encoding}, not UTF8")
    if is_standby:
        yield STANDBY.found("this server is a standby, which takes no writes")
    if is_superuser:
        yield SUPERUSER.found(f"{first.info.user} is a superuser")


def judge_version(version: str) -> Finding:
    least = (connection.features.minimum_database_version or (14,))[0]
    major = version.split()[0].partition(".")[0]
    is_old = not major.isdigit() or int(major) < least
    return OLD.found(f"Postgres {version}; at least {least} is needed") if is_old else good(f"Postgres {version}")


def _way(first: psycopg.Connection[Any], url: str, setting: str) -> Finding:
    host = urlsplit(url).hostname or ""
    if first.pgconn.ssl_in_use:
        return good("the way to it is encrypted")
    if is_near(host):
        return good("the way to it stays on this machine")
    return PLAIN.found(f"{setting}: no TLS on the way to {host}")


def _own_session(first: psycopg.Connection[Any], url: str) -> Finding:
    """Others, each in a transaction, beside the first: do they get its server process, or it another one?"""
    others: list[psycopg.Connection[Any]] = []
    mine = _process_of(first)
    try:
        for _ in range(_NEIGHBOURS):
            others.append(psycopg.connect(url, connect_timeout=_PATIENCE_S))
            if _process_of(others[-1]) == mine:
                return POOLER.found("another connection was given the server process of ours")
        is_kept = _process_of(first) == mine
    finally:
        for each in others:
            each.close()
    return (
        good("a connection keeps its session") if is_kept else POOLER.found("our connection changed server processes")
    )


def _process_of(one: psycopg.Connection[Any]) -> int:
    row = one.execute("SELECT pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0


def _tables() -> Finding:
    executor = MigrationExecutor(connection)
    missing = [step for step, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())]
    if missing:
        return UNMIGRATED.found(f"{len(missing)} migrations are not applied, the first is {missing[0]}")
    return good("all migrations are applied")
