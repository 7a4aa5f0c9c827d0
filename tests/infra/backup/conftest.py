"""A Postgres of one's own with a ledger in it, and the folders of an installation around it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from infra.backup.repository import Repository
from infra.backup.source import source_of_home
from infra.backup.taking import take_backup
from infra.local.home import Home
from infra.local.ports import PORT_NAMES, free_port
from infra.local.services.postgres import Postgres
from tests.waiting import eventually

LEDGER = """
CREATE TABLE ledger (n bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE api_backgroundtime (name text PRIMARY KEY, runs int, failures int, seconds float, longest_s float,
                                 last_at timestamptz)
"""


@contextmanager
def serving(home: Home) -> Iterator[Postgres]:
    postgres = Postgres(home=home, port=home.written_ports()["postgres"], is_durable=False)
    with (home.logs / "postgres.log").open("ab") as log:
        server = subprocess.Popen(
            postgres.command(), stdout=log, stderr=log, cwd="/", env=postgres.environment(), **postgres.identity()
        )
    try:
        eventually(
            postgres.is_healthy, "Postgres is healthy", process=server, log=(home.logs / "postgres.log").read_text
        )
        yield postgres
    finally:
        server.terminate()
        server.wait(30)


def home_in(folder: Path) -> Home:
    home = Home(folder)
    home.prepare()
    home.write_ports({name: free_port() for name in PORT_NAMES})
    return home


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    home: Home
    repository: Repository
    postgres: Postgres

    def take(self, *, keep: int = 14) -> str:
        source = source_of_home(self.home)
        return take_backup(source, self.repository, keep=keep, with_secrets=True, tell=lambda line: None).id

    def write(self, rows: int = 1) -> None:
        with psycopg.connect(self.postgres.url()) as db:
            db.execute("INSERT INTO ledger SELECT FROM generate_series(1, %s)", [rows])

    def moment(self) -> str:
        """After all that was written, and before all that will be."""
        return str(self.rows("SELECT clock_timestamp()")[0][0])

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.postgres.url()) as db:
            return db.execute(query).fetchall()

    def store_file(self, name: str, content: bytes) -> Path:
        path = self.home.store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    home = home_in(tmp_path_factory.mktemp("site") / "home")
    postgres = Postgres(home=home, port=home.written_ports()["postgres"], is_durable=False)
    postgres.prepare()
    with serving(home) as running:
        running.ensure_database()
        with psycopg.connect(running.url()) as db:
            db.execute(LEDGER)
        yield running


@pytest.fixture
def installation(server: Postgres, tmp_path: Path) -> Installation:
    with psycopg.connect(server.url()) as db:
        db.execute("TRUNCATE ledger RESTART IDENTITY")
    return Installation(home=server.home, repository=Repository(tmp_path / "backups"), postgres=server)


@pytest.fixture(scope="module")
def taken(server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """With one backup, for tests that only look at it."""
    repository = Repository(tmp_path_factory.mktemp("taken") / "backups")
    installation = Installation(home=server.home, repository=repository, postgres=server)
    installation.store_file("jobs/job_0/checkpoint", b"weights")
    installation.take()
    return installation
