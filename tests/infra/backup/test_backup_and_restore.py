"""Backup and restore on a real Postgres: exact to the chosen moment, and nothing that was interrupted is a backup."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

from infra.backup import __main__ as commands
from infra.backup.errors import BackupError
from infra.backup.postgres import Server
from infra.backup.repository import Repository
from infra.backup.restoring import chosen_backup
from infra.backup.source import source_of_home
from infra.backup.taking import check_whole, files_of, take_backup
from infra.local.home import Home
from infra.local.services.postgres import ADMINISTRATOR
from tests.infra.backup.conftest import Installation, home_in, serving
from tests.waiting import eventually

HISTORY = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"


def restore(monkeypatch: pytest.MonkeyPatch, repository: Repository, home: Home, *words: str) -> int:
    line = ["infra.backup", "--home", str(home.folder), "--backups", str(repository.folder), "restore", *words]
    monkeypatch.setattr(sys, "argv", line)
    return commands.main()


def ledger_of(home: Home) -> tuple[list[int], list[tuple[object, ...]]]:
    with serving(home) as postgres, psycopg.connect(postgres.url()) as db:
        rows = [row[0] for row in db.execute("SELECT n FROM ledger ORDER BY n").fetchall()]
        return rows, db.execute(HISTORY).fetchall()


def kill_at(installation: Installation, step: str) -> int:
    """Takes a backup in a child process, which dies when it reports `step`. Returns the exit code."""
    child = os.fork()
    if child == 0:
        try:
            take_backup(
                source_of_home(installation.home),
                installation.repository,
                keep=14,
                with_secrets=True,
                tell=lambda line: os._exit(9) if line.startswith(step) else None,
            )
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.long
def test_restore_ends_exactly_at_the_chosen_moment(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Backed up while it is written to; restored elsewhere."""
    stop = Event()

    def load() -> None:
        while not stop.is_set():
            installation.write(10)

    writer = Thread(target=load)
    writer.start()
    try:
        installation.store_file("jobs/job_1/checkpoint", b"weights")
        installation.take()
    finally:
        stop.set()
        writer.join()
    installation.write(7)
    [(kept,)] = installation.rows("SELECT count(*) FROM ledger")
    moment = installation.moment()
    installation.write(1000)
    installation.store_file("jobs/job_1/later", b"more weights")
    installation.take()

    elsewhere = home_in(tmp_path / "elsewhere")
    assert restore(monkeypatch, installation.repository, elsewhere, "--to", moment) == 0, capsys.readouterr().err
    rows, history = ledger_of(elsewhere)
    assert rows == list(range(1, int(str(kept)) + 1))
    assert history != installation.rows(HISTORY), "by which a site knows that it was put back"
    assert not list((elsewhere.folder / "postgres").glob("laminar_wal"))
    assert (elsewhere.store / "jobs/job_1/checkpoint").read_bytes() == b"weights"
    assert (elsewhere.store / "jobs/job_1/later").read_bytes() == b"more weights"
    assert restore(monkeypatch, installation.repository, elsewhere) == 1
    assert "is not empty; --replace renames it" in capsys.readouterr().err
    assert restore(monkeypatch, installation.repository, elsewhere, "--replace") == 0, capsys.readouterr().err
    assert len(ledger_of(elsewhere)[0]) == int(str(kept)) + 1000


@contextmanager
def following(installation: Installation) -> Iterator[None]:
    """Until all is kept that is written by now."""
    folders = ["--home", str(installation.home.folder), "--backups", str(installation.repository.folder)]
    follower = subprocess.Popen([sys.executable, "-m", "infra.backup", *folders, "follow"])
    try:
        yield
        [(end,)] = installation.rows("SELECT pg_logical_emit_message(false, 'test', 'the end', true)::text")
        kept = f"SELECT 1 FROM pg_replication_slots WHERE active AND restart_lsn > '{end}'"
        eventually(lambda: installation.rows(kept), "the backup has followed to the end", process=follower)
        assert Server(installation.postgres.url(user=ADMINISTRATOR)).is_followed()
    finally:
        follower.terminate()
        follower.wait(30)


@pytest.mark.long
def test_streamed_wal_survives_the_loss_of_the_server(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installation.take()
    server = Server(installation.postgres.url(user=ADMINISTRATOR))
    assert not server.is_followed(), "by which the health check of that service goes"
    with following(installation):
        installation.write(5)
    elsewhere = home_in(tmp_path / "elsewhere")
    assert restore(monkeypatch, installation.repository, elsewhere) == 0, capsys.readouterr().err
    assert ledger_of(elsewhere)[0] == [1, 2, 3, 4, 5]


@pytest.mark.long
@pytest.mark.parametrize(
    "step",
    [
        "manifest",
        *(
            pytest.param(step, marks=pytest.mark.soak)
            for step in ("database: write-ahead log", "database: full copy", "files", "secrets", "whole")
        ),
    ],
)
def test_killed_backup_is_removed_by_the_next_one(installation: Installation, step: str) -> None:
    assert kill_at(installation, step) == 9
    is_whole = step == "whole"  # what comes after is not part of it
    assert len(installation.repository.backups()) == is_whole
    installation.take()
    assert len(installation.repository.backups()) == 1 + is_whole
    assert not list(installation.repository.points.glob("*.making"))


@pytest.mark.long
def test_stored_file_is_copied_once_and_removed_with_last_backup(
    installation: Installation,
) -> None:
    old = installation.store_file("jobs/job_1/old", b"old")
    installation.store_file("jobs/job_1/twin", b"same")
    installation.store_file("jobs/job_2/twin", b"same")
    installation.take()
    objects = {path: path.stat().st_ino for path in (installation.repository.folder / "objects").glob("*/*")}
    old.unlink()
    second = installation.take(keep=1)
    after = {path: path.stat().st_ino for path in (installation.repository.folder / "objects").glob("*/*")}
    assert len(after) == len(objects) - 1
    assert all(objects[path] == inode for path, inode in after.items())
    assert [manifest.id for manifest in installation.repository.backups()] == [second]
    check_whole(installation.repository, installation.repository.backups()[0])


@pytest.mark.long
@pytest.mark.parametrize("words", [["--as-backed-up"]])
def test_a_restore_without_a_moment_names_at_most_one_target(
    taken: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    """Postgres refuses a second, even an empty one."""
    elsewhere = home_in(tmp_path / "elsewhere")
    assert restore(monkeypatch, taken.repository, elsewhere, *words) == 0


@pytest.mark.long
def test_content_that_was_changed_is_not_restored(taken: Installation) -> None:
    [manifest] = taken.repository.backups()
    [file] = [file for file in files_of(taken.repository, manifest) if file.name == "jobs/job_0/checkpoint"]
    content = taken.repository.object(file.sha256)
    content.write_bytes(b"weighty")
    with pytest.raises(BackupError, match="is missing or damaged"):
        check_whole(taken.repository, manifest)
    content.write_bytes(b"weights")
    check_whole(taken.repository, manifest)


def test_a_database_that_is_running_is_never_put_aside(
    taken: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert restore(monkeypatch, taken.repository, taken.home, "--replace") == 1
    assert "stop the site first" in capsys.readouterr().err
    assert taken.rows("SELECT 1") == [(1,)]


def test_secrets_are_apart_and_nobody_else_reads_them(taken: Installation) -> None:
    [manifest] = taken.repository.backups()
    file = taken.repository.secrets / f"{manifest.id}.json"
    assert file.stat().st_mode & 0o777 == 0o600
    password = taken.home.secret("postgres-laminar")
    assert password in file.read_text()
    assert password not in (taken.repository.point(manifest.id) / "files.jsonl").read_text()


def test_last_backups_age_is_visible_to_doctor_and_metrics(taken: Installation) -> None:
    assert taken.rows("SELECT runs > 0, last_at > now() - interval '10 minutes' FROM api_backgroundtime") == [
        (True, True)
    ]


def test_moment_before_every_backup_is_refused(taken: Installation) -> None:
    [manifest] = taken.repository.backups()
    with pytest.raises(BackupError, match=manifest.id):
        chosen_backup(taken.repository, id=None, to=datetime.fromisoformat("2020-01-01T00:00:00+00:00"))
