"""What the environment names is backed up as the site itself would reach it: over TLS, past a pooler, secrets apart."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from infra.backup.encrypted import socket_before
from infra.backup.errors import BackupError
from infra.backup.postgres import Server
from infra.backup.repository import Repository
from infra.backup.source import restore_audit_key, secrets_document, source_of_environment
from infra.backup.taking import take_backup
from infra.local.services.postgres import ADMINISTRATOR, Postgres
from tests.certificates import Authority
from tests.tls_front import tls_before


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def told(server: Postgres, authority: Authority, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a site whose Postgres takes TLS alone, with a certificate of a company's own authority."""
    tables, replicates = server.url(), server.url(user=ADMINISTRATOR)
    context = authority.certificate_for("localhost").context()
    with tls_before(server.port, context, of_postgres=True) as port:

        def over_tls(url: str) -> str:
            parts = urlsplit(url)
            place = parts.netloc.replace(f"127.0.0.1:{server.port}", f"localhost:{port}")
            return parts._replace(netloc=place, query="sslmode=verify-full").geturl()

        yield {
            "LAMINAR_DATABASE_URL": "postgresql://nobody@pooler.example.invalid/laminar",
            "LAMINAR_DATABASE_DIRECT_URL": over_tls(tables),
            "LAMINAR_BACKUP_DATABASE_URL": over_tls(replicates),
            "LAMINAR_CA_FILE": str(authority.file),
            "LAMINAR_STORE_DIR": str(tmp_path / "store"),
        }


@pytest.mark.long
def test_backup_of_postgres_behind_pooler_and_tls(server: Postgres, told: dict[str, str], tmp_path: Path) -> None:
    with psycopg.connect(server.url()) as db:
        db.execute("TRUNCATE api_backgroundtime")
    repository = Repository(tmp_path / "backups")
    made = take_backup(source_of_environment(told), repository, keep=1, with_secrets=False, tell=lambda line: None)
    assert [manifest.id for manifest in repository.backups()] == [made.id]
    with psycopg.connect(server.url()) as db:
        assert db.execute("SELECT name, runs FROM api_backgroundtime").fetchall() == [("backup", 1)]
        owner = db.execute("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 'ledger'").fetchall()
    assert owner == [("laminar",)], "the role that records the time"


def test_a_server_that_is_another_is_not_backed_up(told: dict[str, str], tmp_path: Path) -> None:
    strangers = str(Authority(tmp_path, "stranger").file)
    source = source_of_environment(told | {"LAMINAR_CA_FILE": strangers})
    with pytest.raises(BackupError, match="certificate verify failed"):
        Server(source.database_url).era()


def test_tools_socket_checks_the_servers_certificate(
    told: dict[str, str], authority: Authority, tmp_path: Path
) -> None:
    """Not only the connection that is made before it: the server may be another by then."""
    port = urlsplit(told["LAMINAR_DATABASE_DIRECT_URL"]).port
    assert port is not None
    password = urlsplit(told["LAMINAR_BACKUP_DATABASE_URL"]).password
    user = f"user={ADMINISTRATOR} password={password} dbname=laminar"
    ours, stranger = str(authority.file), str(Authority(tmp_path, "stranger").file)

    def answers(name: str, authorities: str) -> bool:
        options = {"sslmode": "verify-full", "sslrootcert": authorities}
        with socket_before("127.0.0.1", port, options, name=name) as place:
            try:
                psycopg.connect(f"{user} host={place['host']} port={place['port']}").close()
            except psycopg.OperationalError:
                return False
            return True

    assert answers("localhost", ours)
    assert not answers("127.0.0.1", ours) and not answers("localhost", stranger)


def test_backup_keeps_every_given_secret_apart(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "gpubox").write_text("of the box")
    (tmp_path / "oidc").write_text("of the provider")
    told = {
        "LAMINAR_DATABASE_URL": "postgresql://laminar:p@db/laminar", "LAMINAR_STORE_DIR": str(tmp_path / "store"),
        "LAMINAR_OIDC_SECRET_FILE": str(tmp_path / "oidc"), "LAMINAR_RAY_TOKENS_DIR": str(tokens),
        "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "over by then",
    }  # fmt: skip
    source = source_of_environment(told)
    assert json.loads(secrets_document(source)) == {
        "DATABASE_URL": "postgresql://laminar:p@db/laminar", "OIDC_SECRET_FILE": "of the provider",
        "RAY_TOKENS_DIR/gpubox": "of the box", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key",
    }  # fmt: skip
    assert "key" not in repr(source)


def test_audit_key_is_restored_only_where_none_exists(tmp_path: Path) -> None:
    repository, told = Repository(tmp_path / "backups"), list[str]()
    site = tmp_path / "site"
    key = site / "audit" / "signing_key.pem"
    restore_audit_key(repository, "one", site, owner=None, tell=told.append)
    assert not key.exists() and "a new one is generated" in told[0]
    repository.secrets.mkdir(parents=True)
    (repository.secrets / "one.json").write_text(json.dumps({"AUDIT_KEY_FILE": "of before"}))
    restore_audit_key(repository, "one", site, owner=None, tell=told.append)
    assert key.read_text() == "of before" and key.stat().st_mode & 0o777 == 0o600
    key.write_text("another")
    restore_audit_key(repository, "one", site, owner=None, tell=told.append)
    assert key.read_text() == "another"
