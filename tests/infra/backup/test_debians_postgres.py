"""Debian's own Postgres with ssl=on and SCRAM, where it is installed: TLS of the server, with its channel bound."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db.utils import ConnectionHandler

from backend.outside.addresses import database_address
from backend.outside.database import databases
from infra.backup.errors import BackupError
from infra.backup.postgres import Server
from infra.local.ports import free_port
from tests.certificates import Authority
from tests.waiting import eventually

BINARIES = sorted(folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if (folder / "initdb").exists())
PASSWORD = "a:b@c/d%e"
QUOTED = "a%3Ab%40c%2Fd%25e"

pytestmark = [
    pytest.mark.skipif(not BINARIES, reason="no Postgres of Debian's is installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may start it as somebody else"),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def address(authority: Authority) -> Iterator[str]:
    """Of a server that refuses connections without TLS, and authenticates its users by SCRAM only."""
    nobody, port = pwd.getpwnam("nobody"), free_port()
    folder = Path(tempfile.mkdtemp(prefix="laminar-debians-"))  # which others may pass through, unlike pytest's
    folder.chmod(0o755)
    try:
        certificate = authority.certificate_for("localhost")
        (folder / "password").write_text(PASSWORD)
        shutil.copy(certificate.chain, folder / "server.pem")
        shutil.copy(certificate.key, folder / "server.key")
        (folder / "server.key").chmod(0o600)
        for path in (folder, *folder.iterdir()):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        data = folder / "data"
        words = ["--username=site", f"--pwfile={folder}/password", "--auth=scram-sha-256", "--no-sync", "--no-locale"]
        made = [str(BINARIES[-1] / "initdb"), "--pgdata", str(data), "--encoding=UTF8", *words]
        subprocess.run(made, check=True, capture_output=True, cwd="/", user=nobody.pw_uid, group=nobody.pw_gid)
        (data / "pg_hba.conf").write_text(
            "hostssl all all 127.0.0.1/32 scram-sha-256\nhostssl replication all 127.0.0.1/32 scram-sha-256\n"
        )
        settings = {
            "ssl": "on", "ssl_cert_file": folder / "server.pem", "ssl_key_file": folder / "server.key", "port": port,
            "listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": "off",
        }  # fmt: skip
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            words = [str(BINARIES[-1] / "postgres"), "-D", str(data), *options]
            server = subprocess.Popen(words, stdout=log, stderr=log, cwd="/", user=nobody.pw_uid, group=nobody.pw_gid)
        try:
            ready = [str(BINARIES[-1] / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={port}"]
            eventually(
                lambda: subprocess.run(ready).returncode,
                "Postgres accepts connections",
                until=lambda code: code == 0,
                process=server,
                log=(folder / "log").read_text,
            )
            yield f"postgresql://site:{QUOTED}@localhost:{port}/postgres"
        finally:
            server.terminate()
            server.wait(30)
    finally:
        shutil.rmtree(folder)


def test_the_site_reaches_it_with_its_channel_bound(address: str, authority: Authority) -> None:
    url = database_address(f"{address}?sslmode=verify-full&channel_binding=require", str(authority.file))
    with psycopg.connect(**ConnectionHandler(databases(url, ""))["default"].get_connection_params()) as db:
        assert db.pgconn.ssl_in_use
        sessions = db.execute("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchall()
    assert sessions[0][0] is True


@pytest.mark.parametrize("query", ["sslmode=disable", "sslmode=verify-full"])
def test_plain_or_untrusted_connection_is_refused(address: str, query: str, tmp_path: Path) -> None:
    url = database_address(f"{address}?{query}", str(Authority(tmp_path, "stranger").file))
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_backup_tools_without_tls_sign_in(address: str, authority: Authority, tmp_path: Path) -> None:
    """It offers them a bound channel, which they have not."""
    server = Server(database_address(f"{address}?sslmode=verify-full", str(authority.file)))
    wal = tmp_path / "wal"
    wal.mkdir()
    server.catch_up(wal)
    assert [path for path in wal.iterdir() if path.stat().st_size > 0] and server.era()
    bound = database_address(f"{address}?sslmode=verify-full&channel_binding=require", str(authority.file))
    with pytest.raises(BackupError, match="channel_binding=require"):
        Server(bound).catch_up(wal)
