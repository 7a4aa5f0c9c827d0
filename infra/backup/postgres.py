"""Postgres' own tools: the base of a backup, and everything written since.

pg_basebackup   a whole copy with what it needs to be consistent, each file with its sha256
pg_receivewal   what is written, as it is written; a slot makes the server keep what was not fetched yet
pg_verifybackup a base is what was copied
"""

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from infra.backup.encrypted import socket_before
from infra.backup.errors import BackupError
from infra.local.services.postgres import binaries

log = logging.getLogger(__name__)

SLOT: Final = "laminar_backup"
SEGMENT_DIGITS: Final = 24
CATCHES_UP_WITHIN_S: Final = 3600.0
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    tables_url: str = ""
    """As whose the tables are; empty: the same."""

    def era(self) -> str:
        """Of one server and one timeline: what another writes does not follow from its backups."""
        with self._connected() as db:
            row = db.execute(
                "SELECT system_identifier || '-' || left(pg_walfile_name(pg_current_wal_lsn()), 8)"
                " FROM pg_control_system()"
            ).fetchone()
        assert row is not None
        return str(row[0])

    def answers(self) -> bool:
        try:
            self._connected().close()
        except BackupError:
            return False
        return True

    def is_followed(self) -> bool:
        """Whether a receiver streams the WAL. The server notices a lost receiver within a minute."""
        return self._slot() == "streamed by another"

    def copy_base(self, to: Path) -> None:
        """Verified."""
        self._run("pg_basebackup", "--pgdata", str(to), "--checkpoint=fast", "--manifest-checksums=SHA256")
        verify_base(to)

    def catch_up(self, wal: Path) -> None:
        """wal/ holds everything that was written before this call. Where `follow` runs it does so by itself."""
        slot = self._slot()
        if slot == "streamed by another":
            return
        if slot == "lost":
            log.warning("the server removed part of the write-ahead log since the last backup: times in between cannot "
                        "be restored; raise max_slot_wal_keep_size, or take backups more often")  # fmt: skip
            with self._connected() as db:
                db.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
        self._receive(wal, "--create-slot", "--if-not-exists")
        with self._connected() as db:
            row = db.execute("SELECT pg_current_wal_lsn()").fetchone()
            assert row is not None
            # pg_receivewal ends at the first record beyond. Its own commit writes it to the disk, in every release.
            db.execute("SELECT pg_logical_emit_message(true, 'laminar', 'backup')")
        self._receive(wal, "--no-loop", f"--endpos={row[0]}")

    def follow(self, wal: Path) -> None:
        """Until it is ended; waits for a server that is away."""
        self._receive(wal, "--create-slot", "--if-not-exists", timeout_s=60.0)
        words = [str(binaries() / "pg_receivewal"), "--directory", str(wal), "--slot", SLOT]
        words += ["--synchronous", "--dbname"]  # else it is on disk after 16 MB only
        with self._way() as address:
            _run_until_ended([*words, address], self._environment())

    def note_backup(self, seconds: float) -> None:
        """Where doctor and /metrics see its age: among the times of background work."""
        with self._connected(self.tables_url) as db:
            db.execute(
                "INSERT INTO api_backgroundtime AS noted (name, runs, failures, seconds, longest_s, last_at)"
                " VALUES ('backup', 1, 0, %(s)s, %(s)s, clock_timestamp()) ON CONFLICT (name) DO UPDATE"
                " SET runs = noted.runs + 1, seconds = noted.seconds + excluded.seconds,"
                " longest_s = greatest(noted.longest_s, excluded.longest_s), last_at = excluded.last_at",
                {"s": seconds},
            )

    def _slot(self) -> str:
        with self._connected() as db:
            row = db.execute(
                "SELECT active, wal_status FROM pg_replication_slots WHERE slot_name = %s", [SLOT]
            ).fetchone()
        if row is None:
            return "none yet"
        return "streamed by another" if row[0] else "lost" if row[1] == "lost" else "waits"

    def _receive(self, wal: Path, *words: str, timeout_s: float = CATCHES_UP_WITHIN_S) -> None:
        self._run("pg_receivewal", "--directory", str(wal), "--slot", SLOT, *words, timeout_s=timeout_s)

    def _run(self, tool: str, *words: str, timeout_s: float | None = None) -> None:
        with self._way() as address:
            whole = [str(binaries() / tool), *words, "--dbname", address]
            run(whole, self._environment(), timeout_s=timeout_s)

    def _connected(self, url: str = "") -> "psycopg.Connection[tuple[object, ...]]":
        try:
            return psycopg.connect(url or self.url, autocommit=True, connect_timeout=10)
        except psycopg.OperationalError as error:
            raise BackupError(f"Postgres does not respond: {str(error).strip()}; start it, and try again") from error

    @contextmanager
    def _way(self) -> Iterator[str]:
        """Without the password, which everybody on this machine could read in a list of processes."""
        options = psycopg.conninfo.conninfo_to_dict(self.url)
        options.pop("password", None)
        with self._connected() as db:
            is_encrypted, host = db.pgconn.ssl_in_use, db.info.host
            address = (db.info.hostaddr or host, db.info.port)
        if not is_encrypted:
            yield psycopg.conninfo.make_conninfo("", **options)
            return
        with socket_before(*address, options, name=host) as place:
            kept = {name: each for name, each in options.items() if not name.startswith(("ssl", "hostaddr", "channel"))}
            yield psycopg.conninfo.make_conninfo("", **kept | dict(place))

    def _environment(self) -> dict[str, str]:
        password = psycopg.conninfo.conninfo_to_dict(self.url).get("password") or ""
        return {"PATH": os.environ.get("PATH", ""), "LANG": "C", "PGPASSWORD": str(password)}


def _run_until_ended(words: list[str], environment: dict[str, str]) -> None:
    """Runs the tool and passes SIGTERM and SIGINT on to it."""
    with subprocess.Popen(words, env=environment) as tool:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: tool.terminate())
        code = tool.wait()
    if code > 0:
        raise BackupError(f"{Path(words[0]).name} ended with {code}")


def verify_base(base: Path) -> None:
    run([str(binaries() / "pg_verifybackup"), "--exit-on-error", "--quiet", str(base)], {"LANG": "C"})


def sync_base(data: Path) -> None:
    run([str(binaries() / "initdb"), "--sync-only", "--pgdata", str(data)], {"LANG": "C"})


def first_segment(base: Path) -> str:
    """Of its own copy of what was written: the first file that recovery reads."""
    return min(path.name for path in (base / "pg_wal").iterdir() if len(path.name) == SEGMENT_DIGITS)


def run(words: list[str], environment: dict[str, str], *, timeout_s: float | None = None) -> None:
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise BackupError(f"{Path(words[0]).name} did not finish within {timeout_s:.0f} s") from error
    if done.returncode != 0:
        raise BackupError(f"{Path(words[0]).name}: {done.stderr.strip()[-1000:]}")
