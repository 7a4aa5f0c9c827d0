"""Postgres over TLS, and past a pooler."""

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection, connections
from django.db.utils import ConnectionHandler

from backend import health
from backend.environment import read_environment
from backend.missing import MissingSetting
from backend.outside.database import DIRECT, TIME_LIMITS_MS, databases, direct_parameters, go_direct, set_time_limits
from backend.prepared_queries import fetch_prepared
from backend.telemetry.live import hub
from tests.backend.outside.conftest import REFUSED, RIGHT, Company, advice

OURS = os.environ.get("LAMINAR_DATABASE_URL", "")


def over_tls(company: Company, port: int, case: str) -> str:
    """As the settings handle `?sslmode=verify-full` and LAMINAR_CA_FILE."""
    parts = urlsplit(OURS)
    server = parts.netloc.replace(f"127.0.0.1:{parts.port}", f"{company.host(case)}:{port}")
    url = parts._replace(netloc=server, query="sslmode=verify-full").geturl()
    variables = dict(os.environ) | {"LAMINAR_DATABASE_URL": url, "LAMINAR_CA_FILE": company.authorities(case)}
    return read_environment(variables).database_url


def test_a_server_of_our_authority_is_reached_over_tls(company: Company, database_port: int) -> None:
    url = over_tls(company, database_port, RIGHT)
    parameters = ConnectionHandler(databases(url, ""))["default"].get_connection_params()
    with psycopg.connect(**parameters) as db:
        assert db.pgconn.ssl_in_use


@pytest.mark.parametrize("case", REFUSED)
def test_impostor_server_is_refused_and_the_setting_named(
    company: Company, database_port: int, case: str, settings: Any
) -> None:
    url = over_tls(company, database_port, case)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(**ConnectionHandler(databases(url, ""))["default"].get_connection_params())
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url=url)
    problem = health._postgres()
    assert advice(case) in problem and "LAMINAR_DATABASE_URL" in problem and "localhost" not in problem


def test_an_authority_in_the_address_goes_before_the_one_of_all(company: Company, database_port: int) -> None:
    url = f"postgresql://x:y@localhost/z?sslmode=verify-full&sslrootcert={company.ours.file}"
    variables = dict(os.environ) | {"LAMINAR_DATABASE_URL": url, "LAMINAR_CA_FILE": str(company.stranger.file)}
    assert read_environment(variables).database_url == url


@pytest.mark.django_db
def test_live_hub_keeps_the_addresss_tls_options(
    company: Company, database_port: int, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def listens(case: str) -> bool:
        connections["default"].settings_dict |= {
            "HOST": company.host(case),
            "PORT": str(database_port),
            "OPTIONS": databases(over_tls(company, database_port, case), "")["default"]["OPTIONS"],
        }
        async with await hub._connect() as db:
            return bool(db.pgconn.ssl_in_use)

    kept = dict(connections["default"].settings_dict)
    try:
        assert asyncio.run(listens(RIGHT))
        for case in REFUSED:
            with pytest.raises(psycopg.OperationalError):
                asyncio.run(listens(case))
    finally:
        connections["default"].settings_dict |= kept


def _close_pool(wrapper: Any) -> None:
    """Only Postgres' wrapper has a pool."""
    wrapper.close_pool()


@pytest.fixture
def behind_a_pooler(transactional_db: None) -> Any:
    """Pages and background work connect through a pooler; here that is Postgres itself again."""
    pooled, before = databases(OURS, OURS), connections.settings["default"]
    name = connection.settings_dict["NAME"]
    connections["default"].close()
    _close_pool(connections["default"])
    kept = connections["default"]
    for alias, settings in pooled.items():
        connections.settings[alias] = connections.configure_settings({"default": settings})["default"] | {"NAME": name}
    del connections["default"]
    yield
    for alias in pooled:
        with suppress(AttributeError):
            connections[alias].close()
            _close_pool(connections[alias])
            del connections[alias]
    del connections.settings[DIRECT]
    connections.settings["default"] = before
    connections["default"] = kept


def test_pooled_connection_leaves_nothing_on_the_server(behind_a_pooler: None) -> None:
    for _ in range(6):
        fetch_prepared("SELECT %s::int", [1])
    assert connections["default"].settings_dict["DISABLE_SERVER_SIDE_CURSORS"]
    with connections["default"].cursor() as db:
        db.execute("SELECT (SELECT count(*) FROM pg_prepared_statements), current_setting('statement_timeout')")
        assert db.fetchone() == (0, "0"), "a pooler refuses such parameters, or passes them to other clients"


def test_listeners_bypass_the_pooler(behind_a_pooler: None) -> None:
    connections.settings["default"]["PORT"] = connections["default"].settings_dict["PORT"] = "1"  # an unused port
    with psycopg.connect(**direct_parameters()) as db:
        assert db.execute("SHOW statement_timeout").fetchone() == ("20s",)


def test_migrations_bypass_pooler_and_set_the_roles_limits(behind_a_pooler: None) -> None:
    assert go_direct()
    assert connection.settings_dict["OPTIONS"]["options"]
    set_time_limits()
    plain = {name: value for name, value in direct_parameters().items() if name != "options"}
    with psycopg.connect(**plain) as db:
        shown = dict(db.execute("SELECT name, setting::int FROM pg_settings WHERE name LIKE '%timeout'").fetchall())
    assert TIME_LIMITS_MS.items() <= shown.items()


def test_without_a_pooler_there_is_one_way() -> None:
    assert set(databases(OURS, "")) == {"default"} and not go_direct()


@pytest.mark.parametrize("name", ["LAMINAR_DATABASE_URL", "LAMINAR_DATABASE_DIRECT_URL"])
def test_an_address_that_is_none_is_refused_by_name(name: str) -> None:
    urls = {"LAMINAR_DATABASE_URL": OURS, "LAMINAR_DATABASE_DIRECT_URL": OURS} | {name: "mysql://x/y"}
    with pytest.raises(MissingSetting, match=f"^{name} must look like postgresql://"):
        databases(urls["LAMINAR_DATABASE_URL"], urls["LAMINAR_DATABASE_DIRECT_URL"])
