"""Postgres and Valkey in `doctor`: those of the tests are good, and each of their faults is found by name."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import redis
from django.conf import settings
from django.db.migrations.recorder import MigrationRecorder

from backend.operating.checks import broker, clock, postgres
from tests.backend.operating.checks.conftest import faults
from tests.backend.operating.checks.pooling import pooling
from tests.backend.operating.conftest import Broken

AWAY = "127.0.0.1:9"


@pytest.fixture
def database_url(db: None) -> str:
    """Of the tests' database."""
    name = settings.DATABASES["default"]["NAME"]
    return urlunsplit(urlsplit(settings.ENVIRONMENT.database_url)._replace(path=f"/{name}"))


def test_the_postgres_of_the_tests_is_well(broken: Broken, database_url: str) -> None:
    findings = list(postgres.check_postgres(broken(database_url=database_url)))
    assert faults(findings) == set()
    assert [finding.observation.split()[0] for finding in findings] == ["Postgres", "the", "a", "all"]


def test_a_postgres_that_is_away_is_found_without_its_password(broken: Broken) -> None:
    findings = list(postgres.check_postgres(broken(database_url=f"postgresql://x:hunter2@{AWAY}/x")))
    assert faults(findings) == {"postgres.unreachable"}
    assert "hunter2" not in str(findings)


def test_a_way_to_postgres_that_others_share_needs_tls(broken: Broken, database_url: str) -> None:
    """libpq connects to the address, but checks and reports the name."""
    elsewhere = database_url.replace("@127.0.0.1:", "@db.example.org:") + "?hostaddr=127.0.0.1"
    assert "postgres.plain" in faults(postgres.check_postgres(broken(database_url=elsewhere)))


def test_a_pooler_in_transaction_mode_is_found(broken: Broken, database_url: str) -> None:
    with pooling(database_url) as url:
        with psycopg.connect(url, autocommit=True) as db:
            assert db.execute("SELECT 6 * 7").fetchone() == (42,), "it is a Postgres nevertheless"
        assert faults(postgres.check_postgres(broken(database_url=url))) == {"postgres.pooler"}


def test_pooler_with_direct_address_is_good_and_limits_checked(broken: Broken, database_url: str) -> None:
    with pooling(database_url + "?options=-cstatement_timeout%3D20000") as url:
        both = broken(database_url=url, database_direct_url=database_url)
        assert faults(postgres.check_postgres(both)) == set()
    with pooling(database_url + "?options=-cstatement_timeout%3D0") as url:
        both = broken(database_url=url, database_direct_url=database_url)
        assert faults(postgres.check_postgres(both)) == {"postgres.no_limits"}
        twice = broken(database_url=url, database_direct_url=url)
        assert "postgres.pooler" in faults(postgres.check_postgres(twice)), "the direct address is a pooler too"


def test_a_pooler_that_leads_elsewhere_or_nowhere_is_found(broken: Broken, database_url: str) -> None:
    elsewhere = urlunsplit(urlsplit(database_url)._replace(path="/postgres"))
    apart = broken(database_url=elsewhere, database_direct_url=database_url)
    assert "postgres.apart" in faults(postgres.check_postgres(apart))
    nowhere = broken(database_url=f"postgresql://x:hunter2@{AWAY}/x", database_direct_url=database_url)
    findings = list(postgres.check_postgres(nowhere))
    assert faults(findings) == {"postgres.unreachable"} and "hunter2" not in str(findings)
    assert findings[-1].observation.startswith("LAMINAR_DATABASE_URL, the pooler: ")
    lost = broken(database_url=database_url, database_direct_url=f"postgresql://x:hunter2@{AWAY}/x")
    [found_lost] = postgres.check_postgres(lost)
    assert found_lost.fault == "postgres.unreachable" and found_lost.observation.startswith(
        "LAMINAR_DATABASE_DIRECT_URL: "
    )


def test_a_superuser_is_a_warning(broken: Broken, database_url: str) -> None:
    password = (settings.ENVIRONMENT.ray_token_file.parent / "postgres-postgres").read_text().strip()
    parts = urlsplit(database_url)
    url = urlunsplit(parts._replace(netloc=f"postgres:{password}@{parts.hostname}:{parts.port}"))
    assert faults(postgres.check_postgres(broken(database_url=url))) == {"postgres.superuser"}


def test_a_database_in_which_letters_are_bytes_is_found(broken: Broken, database_url: str) -> None:
    """A Postgres created without a locale creates such databases."""
    name, parts = "laminar_of_bytes", urlsplit(database_url)
    password = (settings.ENVIRONMENT.ray_token_file.parent / "postgres-postgres").read_text().strip()
    operator = parts._replace(netloc=f"postgres:{password}@{parts.hostname}:{parts.port}")
    with psycopg.connect(urlunsplit(operator), autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    try:
        findings = postgres.check_postgres(broken(database_url=urlunsplit(parts._replace(path=f"/{name}"))))
        assert faults(findings) == {"postgres.encoding"}
    finally:
        with psycopg.connect(urlunsplit(operator), autocommit=True) as db:
            db.execute(f"DROP DATABASE {name}")


def test_a_migration_that_was_not_applied_is_found(broken: Broken, database_url: str) -> None:
    MigrationRecorder.Migration.objects.filter(app="webhooks").delete()
    findings = list(postgres.check_postgres(broken(database_url=database_url)))
    assert faults(findings) == {"postgres.unmigrated"}
    assert "webhooks" in findings[-1].observation


@pytest.mark.parametrize(("version", "fault"), [("13.9", "postgres.old"), ("14.0", ""), ("18.6 (Debian 18.6-1)", "")])
def test_a_postgres_that_is_too_old_is_found(version: str, fault: str) -> None:
    assert postgres.judge_version(version).fault == fault


def test_a_standby_is_found(broken: Broken, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres searches pg_catalog last if a path names it last, so the test's function precedes its own."""
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("CREATE FUNCTION public.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'")
    try:
        url = database_url + "?options=-csearch_path%3Dpublic%2Cpg_catalog"
        assert "postgres.standby" in faults(postgres.check_postgres(broken(database_url=url)))
    finally:
        with psycopg.connect(database_url, autocommit=True) as db:
            db.execute("DROP FUNCTION public.pg_is_in_recovery()")


@pytest.fixture
def valkey() -> Iterator[Any]:
    """The tests' own; settings are restored after a test."""
    client: Any = redis.Redis.from_url(settings.ENVIRONMENT.broker_url, decode_responses=True)
    names = ("maxmemory-policy", "save", "appendonly", "maxmemory")
    before = {name: client.config_get(name)[name] for name in names}
    yield client
    for name, value in before.items():
        client.config_set(name, value)
    client.close()


def test_the_valkey_of_the_tests_is_well(broken: Broken, valkey: Any) -> None:
    valkey.config_set("save", "3600 1")
    assert faults(broker.check_broker(broken())) == set()


def test_a_valkey_that_evicts_is_found(broken: Broken, valkey: Any) -> None:
    valkey.config_set("maxmemory-policy", "allkeys-lru")
    assert "broker.evicts" in faults(broker.check_broker(broken()))


def test_a_valkey_that_keeps_nothing_is_a_warning(broken: Broken, valkey: Any) -> None:
    valkey.config_set("save", "")
    valkey.config_set("appendonly", "no")
    assert faults(broker.check_broker(broken())) == {"broker.forgets"}


def test_a_valkey_without_room_is_found(broken: Broken, valkey: Any) -> None:
    valkey.config_set("maxmemory", str(valkey.info()["used_memory"]))
    assert "broker.full" in faults(broker.check_broker(broken()))


@pytest.mark.parametrize("url", [f"redis://:hunter2@{AWAY}/0", "wrong password"])
def test_refusing_valkey_is_reported_without_the_password(broken: Broken, url: str) -> None:
    if url == "wrong password":
        parts = urlsplit(settings.ENVIRONMENT.broker_url)
        url = f"redis://:hunter2@{parts.hostname}:{parts.port}/0"
    findings = list(broker.check_broker(broken(broker_url=url)))
    assert faults(findings) == {"broker.unreachable"} and "hunter2" not in str(findings)


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"redis_version": "6.0.16"}, "broker.old"),
        ({"aof_last_write_status": "err"}, "broker.cannot_save"),
        ({"rdb_last_bgsave_status": "err"}, "broker.cannot_save"),
    ],
)
def test_valkeys_info_is_judged(told: dict[str, Any], fault: str) -> None:
    assert faults(broker.judge({"redis_version": "7.2.4", **told}, snapshots="60 1")) == {fault}


def test_a_way_to_valkey_that_others_share_needs_tls() -> None:
    assert [
        broker.judge_way(url).fault
        for url in ("redis://mq.example.org/0", "rediss://mq.example.org", "redis://valkey/0")
    ] == [
        "broker.plain",
        "",
        "",
    ]


def test_clocks_that_differ_are_found_and_slow_answers_are_not(broken: Broken, database_url: str) -> None:
    assert faults(clock.check_clock(broken(database_url=database_url))) == set()
    assert clock.judge(90.0, 100.0, 101.0, "it").fault == clock.judge(111.0, 100.0, 101.0, "it").fault == "clock.apart"
    assert clock.judge(150.0, 100.0, 200.0, "it").fault == "", "a slow response proves little about the clock"
