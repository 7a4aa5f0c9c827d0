"""Migrations that rename what has rows already: the rows stay and mean the same. On a database of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psycopg
import pytest

pytestmark = pytest.mark.long

BEFORE: Mapping[str, str] = {
    "account": "0009_emailaddress_unique_primary_email",  # allauth's own
    "accounts": "0002_tenancy",
    "jobs": "0007_evaluations",
    "telemetry": "0003_removals",
}
"""Of each app, the state in which the rows are written."""
MIGRATE = """
import sys, django
django.setup()
from django.core.management import call_command
for state in sys.argv[1:] or [""]:
    call_command("migrate", *state.split(), verbosity=0)
"""


@dataclass(frozen=True, slots=True)
class Database:
    url: str

    def migrate(self, states: Mapping[str, str] | None = None) -> None:
        environment = os.environ | {"LAMINAR_DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "backend.settings"}
        arguments = [f"{app} {name}" for app, name in (states or {}).items()]
        subprocess.run([sys.executable, "-W", "ignore", "-c", MIGRATE, *arguments], env=environment, check=True)

    def drop_foreign_keys(self, table: str) -> None:
        """Then a row can be written without the job, team and pool that it belongs to."""
        named = f"SELECT conname FROM pg_constraint WHERE conrelid = '{table}'::regclass AND contype = 'f'"
        for (name,) in self.rows(named):
            self.write(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')

    def write(self, statement: str) -> None:
        with psycopg.connect(self.url) as db:
            db.execute(statement)

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url) as db:
            return db.execute(query).fetchall()


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    served, _, _ = os.environ["LAMINAR_DATABASE_URL"].rpartition("/")
    name = f"migrated_{os.getpid()}"
    with psycopg.connect(f"{served}/postgres", autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        try:
            yield Database(f"{served}/{name}")
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def migrated(database: Database) -> Database:
    """Rows as they were written before, and all migrations since."""
    database.migrate(BEFORE)
    database.write(
        """
        INSERT INTO accounts_user (id, email, password, public_id, last_login, is_superuser, is_staff, is_active,
                                   is_service, date_joined, first_name, last_name)
        SELECT id, email, '!', 'user_' || id, last_login, false, false, true, is_service, now(), '', '' FROM (VALUES
            (11, 'invited@example.org', NULL::timestamptz, false), (12, 'looked@example.org', now(), false),
            (13, 'taken@example.org', now(), false), (14, 'swapped@example.org', now(), false),
            (15, 'stranger@example.org', NULL, false), (16, 'robot@service.invalid', NULL, true),
            (17, 'Loud@Example.org', now(), false),
            (18, 'Twin@example.org', now(), false), (19, 'twin@example.org', now(), false)
        ) AS people (id, email, last_login, is_service)
        """
    )
    database.write(
        """
        INSERT INTO account_emailaddress (user_id, email, verified, "primary") VALUES
            (12, 'looked@example.org', false, false),
            (13, 'mine@example.org', false, false), (13, 'taken@example.org', false, true),
            (14, 'proved@example.org', true, false), (14, 'swapped@example.org', false, true),
            (15, 'stranger@example.org', false, true)
        """
    )
    for table in ("accounts_apikey", "jobs_jobrequest", "telemetry_removal", "telemetry_unfiledtrajectory"):
        database.drop_foreign_keys(table)
    database.write(
        """
        INSERT INTO accounts_apikey (id, team_id, owner_id, name, prefix, secret_sha256, scopes, created_at)
        VALUES
            ('key_1', 'team_1', 1, 'reads', 'a', '', '{jobs:read,rollouts:read,usage:read}', now()),
            ('key_2', 'team_1', 1, 'does not', 'b', '', '{jobs:read}', now())
        """
    )
    database.write(
        """
        INSERT INTO telemetry_removal (job_id, kind, at, is_done) VALUES
            ('job_1', 'logs', now(), true), ('job_1', 'rollouts', now(), false)
        """
    )
    database.write(
        """
        INSERT INTO telemetry_unfiledtrajectory (trajectory_id, job_id, content, arrived_at) VALUES
            (7, 'job_1', 'whole', now())
        """
    )
    database.write(
        """
        INSERT INTO jobs_jobrequest (id, job_id, kind, data, created_at, acknowledged_at) VALUES
            ('req_1', 'job_1', 'resize', '{"replicas": 3}', now(), now()),
            ('req_2', 'job_1', 'resize', '{"replicas": 5}', now(), NULL),
            ('req_3', 'job_1', 'pause', '{}', now(), NULL)
        """
    )
    database.migrate()
    return database


def test_what_was_asked_of_drivers_is_asked_still(migrated: Database) -> None:
    asked = migrated.rows("SELECT id, kind, replicas, acknowledged_at IS NULL FROM jobs_controlrequest ORDER BY id")
    assert asked == [
        ("req_1", "resize", 3, False),
        ("req_2", "resize", 5, True),
        ("req_3", "pause", None, True),
    ]


@pytest.mark.parametrize(("kind", "replicas"), [("resize", "NULL"), ("resize", "0"), ("pause", "1"), ("stop", "NULL")])
def test_the_database_keeps_no_request_that_a_driver_could_not_obey(
    migrated: Database, kind: str, replicas: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="request_can_be_obeyed"):
        migrated.write(
            "INSERT INTO jobs_controlrequest (id, job_id, kind, replicas, created_at)"
            f" VALUES ('req_9', 'job_9', '{kind}', {replicas}, now())"
        )


def test_people_keep_the_address_that_is_theirs_and_no_other(migrated: Database) -> None:
    """Invited; looked at their addresses once; took another's; swapped a proved one for another's; never proved; wrote
    theirs in capitals; twins."""
    addresses = migrated.rows('SELECT user_id, email, verified, "primary" FROM account_emailaddress ORDER BY user_id')
    assert addresses == [
        (11, "invited@example.org", True, True),
        (12, "looked@example.org", True, True),
        (13, "taken@example.org", False, True),
        (14, "proved@example.org", True, True),
        (15, "stranger@example.org", False, True),
        (17, "loud@example.org", True, True),
        (18, "twin@example.org", True, True),
    ]
    assert migrated.rows("SELECT email FROM accounts_user WHERE id = 17") == [("loud@example.org",)]
    assert migrated.rows("SELECT email FROM accounts_user WHERE id = 14") == [("proved@example.org",)]


def test_a_key_that_could_read_what_models_wrote_still_can(migrated: Database) -> None:
    assert migrated.rows("SELECT scopes FROM accounts_apikey ORDER BY id") == [
        (["jobs:read", "trajectories:read", "usage:read"],),
        (["jobs:read"],),
    ]


def test_trajectories_whose_removal_had_begun_are_removed_on(migrated: Database) -> None:
    told = migrated.rows("SELECT kind, is_done FROM telemetry_removal ORDER BY kind")
    assert told == [("logs", True), ("trajectories", False)]


def test_trajectories_that_wait_for_the_archive_wait_on(migrated: Database) -> None:
    waiting = migrated.rows("SELECT trajectory_id, job_id, content FROM telemetry_unarchivedtrajectory")
    assert waiting == [(7, "job_1", b"whole")]
