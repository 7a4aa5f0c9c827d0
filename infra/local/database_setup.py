"""The database before its users: a process that migrates it, which the supervisor polls and never waits for.

Invariants:
- nothing that needs the database starts before its schema and the demo tenant are there;
- Postgres may be killed under it like anything else; a third failure in a row has another cause and is raised;
- it carries the home's marker, so that whatever ends the home's processes ends it too.
"""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg

from infra.local.demo_accounts import write_local_json
from infra.local.errors import LocalError
from infra.local.home import HOME_MARKER, PROJECT, SERVICE_MARKER, Home
from infra.local.room import has_room
from infra.local.services.site import Site

MAX_FAILURES = 3
NAME = "migrate"


class DatabaseSetup:
    def __init__(self, home: Home, *, tell: Callable[[str], None]) -> None:
        self._home, self._tell = home, tell
        self._process: subprocess.Popen[str] | None = None
        self._log_begins_at = 0
        self._failures = 0
        self._account: Mapping[str, Any] | None = None

    def is_ready(self, site: Site) -> bool:
        """To be called, again and again, while Postgres is healthy."""
        if self._account is None:
            try:
                self._advance(site)
            except (LocalError, psycopg.OperationalError) as error:
                self._on_failure(error)
        return self._account is not None

    def write_addresses(self, site: Site) -> None:
        if self._account is not None:
            password, key = (file.read_text().strip() for file in self._secret_files())
            write_local_json(site, self._account, password=password, api_key=key)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # a migration is a transaction
            self._process.communicate()
            self._process = None

    def _advance(self, site: Site) -> None:
        if self._process is None:
            site.postgres.ensure_database()
            self._process = self._start(site)
        elif self._process.poll() is not None:
            process, self._process = self._process, None
            printed, _ = process.communicate()
            if process.returncode != 0:
                raise LocalError(f"`infra.local.migrate` failed: {self._last_words()}")
            self._account = json.loads(printed.strip().splitlines()[-1])
            self.write_addresses(site)

    def _start(self, site: Site) -> subprocess.Popen[str]:
        with self._log.open("ab") as log:
            self._log_begins_at = log.tell()
            return subprocess.Popen(
                [sys.executable, "-m", "infra.local.migrate", *map(str, self._secret_files())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=PROJECT,
                env={**site.control_environment(), HOME_MARKER: str(self._home.folder), SERVICE_MARKER: NAME},
                start_new_session=True,
            )

    def _on_failure(self, error: Exception) -> None:
        if not has_room(self._home):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._home.folder)) from error
        self._failures += 1
        self._tell(f"migration failed: {error}")
        if self._failures >= MAX_FAILURES:
            raise LocalError(str(error)) from error

    def _last_words(self) -> str:
        return self._log.read_bytes()[self._log_begins_at :].decode(errors="replace").strip()[-1500:]

    @property
    def _log(self) -> Path:
        return self._home.logs / f"{NAME}.log"

    def _secret_files(self) -> tuple[Path, Path]:
        return self._home.secrets_folder / "demo-password", self._home.secrets_folder / "demo-api-key"
