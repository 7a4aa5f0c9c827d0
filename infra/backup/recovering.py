"""A restored Postgres of this machine, started alone until it takes writes again, and stopped."""

import signal
import subprocess
import time
from collections.abc import Callable
from typing import Final

import psycopg

from infra.backup.errors import BackupError
from infra.local.home import Home
from infra.local.ports import free_port
from infra.local.services.postgres import ADMINISTRATOR, Postgres

Tell = Callable[[str], None]
TELL_EVERY_S: Final = 5.0
STOPS_WITHIN_S: Final = 60.0


def recover(home: Home, *, tell: Tell) -> str:
    """Recovers the data and returns the time of its last transaction. Any port will do: there are no other clients."""
    postgres = Postgres(home=home, port=free_port())
    log = home.logs / "recovery.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            postgres.command(), stdout=out, stderr=out, cwd="/", env=postgres.environment(),
            start_new_session=True, **postgres.identity(),
        )  # fmt: skip
    try:
        return _recovered(postgres, server, lambda: log.read_text(errors="replace"), tell)
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGINT)
            server.wait(STOPS_WITHIN_S)


def _recovered(postgres: Postgres, server: "subprocess.Popen[bytes]", said: Callable[[], str], tell: Tell) -> str:
    told_at = time.monotonic()
    while server.poll() is None:
        try:
            with psycopg.connect(postgres.url("postgres", user=ADMINISTRATOR), connect_timeout=3) as db:
                row = db.execute(
                    "SELECT pg_is_in_recovery(), coalesce(pg_last_xact_replay_timestamp()::text, '')"
                ).fetchone()
            assert row is not None
            if not row[0]:
                return str(row[1])
        except psycopg.OperationalError:
            pass
        if time.monotonic() - told_at > TELL_EVERY_S:
            told_at = time.monotonic()
            tell("Postgres is recovering")
        time.sleep(0.2)
    words = said()
    if "before configured recovery target was reached" in words:
        raise BackupError("nothing was written after --to; omit it to restore the newest state")
    raise BackupError(f"Postgres could not recover: {words.strip()[-1000:]}")
