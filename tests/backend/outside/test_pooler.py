"""A real PgBouncer in transaction mode, with fewer connections than clients, in front of all users of Postgres."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.waiting import eventually, is_listening

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
ROOMS = ("jobs/submitting/test_submit", "api/test_idempotency", "telemetry/test_hub", "telemetry/test_ingest")


@pytest.fixture
def pooler(tmp_path: Path) -> Iterator[str]:
    """Its address. It refuses to run as root."""
    if PROGRAM is None:
        pytest.skip("no pgbouncer here (Debian: apt-get install pgbouncer), nor in PGBOUNCER")
    parts = urlsplit(os.environ["LAMINAR_DATABASE_URL"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    users, settings = tmp_path / "users", tmp_path / "pgbouncer.ini"
    users.write_text(f'"{parts.username}" "{unquote(parts.password or "")}"\n')
    settings.write_text(
        f"""[databases]
* = host=127.0.0.1 port={parts.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = 4
"""
    )
    command = [PROGRAM, str(settings)]
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in (users, settings):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        for folder in (tmp_path, *tmp_path.parents):
            folder.chmod(folder.stat().st_mode | 0o001)
        command += ["--user", "nobody"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        eventually(partial(is_listening, port), "pgbouncer listens", process=process)
        yield parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")).geturl()
        process.kill()


@pytest.mark.soak
def test_everything_goes_through_a_pooler_in_transaction_mode(pooler: str) -> None:
    """The part of the suite that holds connections, prepares, notifies, copies or waits for locks."""
    environment = os.environ | {
        "LAMINAR_DATABASE_URL": pooler,
        "LAMINAR_DATABASE_DIRECT_URL": os.environ["LAMINAR_DATABASE_URL"],
    }
    rooms = [f"tests/backend/{room}.py" for room in ROOMS]
    # The pooler keeps connections to the tests' database open, so it cannot be dropped.
    command = [sys.executable, "-m", "pytest", "--reuse-db", *rooms]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
