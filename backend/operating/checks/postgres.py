"""Checks Postgres: does it answer, is it new enough, is the connection encrypted, are its tables migrated?

Behind a pooler both addresses are checked: Postgres itself for everything, the pooler for its connection and limits.
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
_NEIGHBOURS: Final = 2  # further connections, to test whether the first keeps its server process

UNREACHABLE = Fault(
    name="postgres.unreachable",
    cure="Start Postgres (or the pooler in front of it), and check address, user and password in that setting; see its "
    "log for details.",
)
OLD = Fault(name="postgres.old", cure="Upgrade Postgres; Laminar is tested with 18.")
ENCODING = Fault(
    name="postgres.encoding",
    cure="Texts in other scripts would be damaged: create a database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE "
    "template0, and move the data by pg_dump.",
)
PLAIN = Fault(
    name="postgres.plain",
    cure="An attacker on the network can read and change everything: enable TLS in Postgres, and append "
    "?sslmode=verify-full to that setting.",
)
STANDBY = Fault(
    name="postgres.standby", cure="Set it to the server that accepts writes (target_session_attrs=read-write)."
)
POOLER = Fault(
    name="postgres.pooler",
    cure="The pooler changes connections after every transaction, which breaks LISTEN and session settings: also set "
    "LAMINAR_DATABASE_DIRECT_URL to Postgres itself, or set the pooler to pool_mode=session.",
)
APART = Fault(
    name="postgres.apart",
    cure="Pages would miss notifications, and migrations would change another database: set LAMINAR_DATABASE_URL (the "
    "pooler) and LAMINAR_DATABASE_DIRECT_URL to the same database of the same server.",
)
NO_LIMITS = Fault(
    name="postgres.no_limits",
    verdict=Verdict.WARNING,
    cure="A statement through the pooler may run forever: run `python manage.py migrate`, which sets time limits for "
    "its account, with the account that the pooler uses.",
)
SUPERUSER = Fault(
    name="postgres.superuser",
    verdict=Verdict.WARNING,
    cure="Laminar needs only a user that owns its database: CREATE ROLE laminar LOGIN; ALTER DATABASE … OWNER TO "
    "laminar.",
)
UNMIGRATED = Fault(
    name="postgres.unmigrated", cure="Run `python manage.py migrate` (with containers: the service migrate)."
)


def check_postgres(environment: Environment) -> Iterator[Finding]:
    """Checks the server that keeps sessions, which LISTEN and migrations use."""
    pooled, direct = environment.database_url, environment.database_direct_url
    setting = "LAMINAR_DATABASE_DIRECT_URL" if direct else "LAMINAR_DATABASE_URL"
    try:
        with psycopg.connect(
            direct or pooled, connect_timeout=_PATIENCE_S, autocommit=True, client_encoding="utf8"
        ) as first:
            yield from _check_server(first)
            yield _check_connection(first, direct or pooled, setting)
            yield _check_session(first, direct or pooled)
            yield _check_migrations()
            if direct:
                yield from _check_pooler(pooled, _identify(first))
    except psycopg.Error as error:
        yield UNREACHABLE.found(f"{setting}: {error}")


def _check_pooler(url: str, place: tuple[Any, ...]) -> Iterator[Finding]:
    try:
        with psycopg.connect(
            url, connect_timeout=_PATIENCE_S, autocommit=True, prepare_threshold=None, client_encoding="utf8"
        ) as pooled:
            yield _check_connection(pooled, url, "LAMINAR_DATABASE_URL")
            yield (
                good("the pooler connects to the same database")
                if _identify(pooled) == place
                else APART.found("the pooler connects to another database than the direct address")
            )
            row = pooled.execute("SELECT current_setting('statement_timeout')").fetchone()
            if row is None or row[0] == "0":
                yield NO_LIMITS.found("through the pooler statements have no time limit")
    except psycopg.Error as error:
        yield UNREACHABLE.found(f"LAMINAR_DATABASE_URL, the pooler: {error}")


def _identify(one: psycopg.Connection[Any]) -> tuple[Any, ...]:
    """Identifies the database: the server's start time, and the database's oid."""
    row = one.execute(
        "SELECT pg_postmaster_start_time(), oid FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    return tuple(row or ())


def _check_server(first: psycopg.Connection[Any]) -> Iterator[Finding]:
    row = first.execute(
        "SELECT current_setting('server_version'), current_setting('server_encoding'), pg_is_in_recovery(), rolsuper "
        "FROM pg_roles WHERE rolname = current_user"
    ).fetchone()
    version, encoding, is_standby, is_superuser = row or ("0", "", False, False)
    yield judge_version(version)
    if encoding != "UTF8":
        yield ENCODING.found(f"the database's encoding is {encoding}, not UTF8")
    if is_standby:
        yield STANDBY.found("this server is a standby, which accepts no writes")
    if is_superuser:
        yield SUPERUSER.found(f"{first.info.user} is a superuser")


def judge_version(version: str) -> Finding:
    least = (connection.features.minimum_database_version or (14,))[0]
    major = version.split()[0].partition(".")[0]
    is_old = not major.isdigit() or int(major) < least
    return OLD.found(f"Postgres {version}; at least {least} is needed") if is_old else good(f"Postgres {version}")


def _check_connection(first: psycopg.Connection[Any], url: str, setting: str) -> Finding:
    host = urlsplit(url).hostname or ""
    if first.pgconn.ssl_in_use:
        return good("the connection is encrypted")
    if is_near(host):
        return good("the connection stays on this machine")
    return PLAIN.found(f"{setting}: no TLS to {host}")


def _check_session(first: psycopg.Connection[Any], url: str) -> Finding:
    """Opens further connections, each in a transaction: does the first keep its server process to itself?"""
    others: list[psycopg.Connection[Any]] = []
    mine = _process_of(first)
    try:
        for _ in range(_NEIGHBOURS):
            others.append(psycopg.connect(url, connect_timeout=_PATIENCE_S))
            if _process_of(others[-1]) == mine:
                return POOLER.found("another connection got the server process of the first")
        is_kept = _process_of(first) == mine
    finally:
        for each in others:
            each.close()
    return (
        good("a connection keeps its session") if is_kept else POOLER.found("the connection changed server processes")
    )


def _process_of(one: psycopg.Connection[Any]) -> int:
    row = one.execute("SELECT pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0


def _check_migrations() -> Finding:
    executor = MigrationExecutor(connection)
    missing = [step for step, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())]
    if missing:
        return UNMIGRATED.found(f"{len(missing)} migrations are not applied, the first is {missing[0]}")
    return good("all migrations are applied")
