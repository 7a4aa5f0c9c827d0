"""`python -m infra.backup take | follow | list | restore`; `make backup` and `make restore` call it."""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from infra.backup.errors import BackupError
from infra.backup.postgres import Server
from infra.backup.recovering import recover
from infra.backup.repository import Repository
from infra.backup.restoring import chosen_backup, is_running_here, restore_database, restore_files
from infra.backup.source import Source, restore_audit_key, restore_secrets, source_of_environment, source_of_home
from infra.backup.taking import take_backup
from infra.local.errors import LocalError
from infra.local.home import Home, default_home
from infra.local.ports import PortClaims
from infra.local.services.postgres import owner_of_data


def main() -> int:
    options = _parser().parse_args()
    home = None if options.environment else Home(Path(options.home).absolute()) if options.home else default_home()
    folder = options.backups or os.environ.get("LAMINAR_BACKUP_DIR")
    if not folder and home is None:
        print("error: set --backups or LAMINAR_BACKUP_DIR to the folder for backups", file=sys.stderr)
        return 2
    repository = Repository(Path(folder).absolute() if folder else _of(home).folder / "backups")
    try:
        _run(options, home, repository)
    except (BackupError, LocalError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.strerror}: {error.filename or repository.folder}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace, home: Home | None, repository: Repository) -> None:
    match options.command:
        case "take":
            secrets = not options.without_secrets
            made = take_backup(_source(home), repository, keep=options.keep, with_secrets=secrets, tell=_tell)
            print(f"backup {made.id} is complete: database and {made.num_files} files, {made.num_bytes / 1e6:.1f} MB")
            if secrets:
                print(f"secrets are stored separately in {repository.secrets}; move them to your password store")
            else:
                print("secrets are not included; keep them yourself: without them, encrypted data cannot be read")
        case "follow":
            server = Server(_source(home).database_url)
            server.follow(repository.wal(server.era()))
        case "list":
            for manifest in repository.backups():
                print(f"{manifest.id}  completed {manifest.finished_at[:19]}Z  {manifest.num_files} files")
        case "restore":
            _restore(options, home, repository)


def _restore(options: argparse.Namespace, home: Home | None, repository: Repository) -> None:
    to = _moment(options.to) if options.to else None
    manifest = chosen_backup(repository, id=options.id, to=to)
    if home is not None:
        home.prepare()
        restore_secrets(repository, manifest.id, home, tell=_tell)
        if not home.ports_file.exists():  # else they are those of a site, part of which may run
            PortClaims(home).close()
    data = Path(options.data) if options.data else _of(home).folder / "postgres"
    owner = options.postgres_owner if home is None else owner_of_data(home)
    is_running = Server(_source(None).database_url).answers() if home is None else is_running_here(data)
    restore_database(
        repository, manifest, data, to=to, only_base=options.as_backed_up, replace=options.replace,
        is_running=is_running, owner=owner, tell=_tell,
    )  # fmt: skip
    source = _source(home)
    restore_files(repository, manifest, source, owner=options.files_owner, tell=_tell)
    if home is None:
        restore_audit_key(repository, manifest.id, source.site, owner=options.files_owner, tell=_tell)
        print("restored; start Postgres, wait until it has recovered, then start the other services")
        return
    print(f"restored up to the transaction at {recover(home, tell=_tell) or manifest.finished_at}; `make up` starts it")


def _source(home: Home | None) -> Source:
    return source_of_environment(os.environ) if home is None else source_of_home(home)


def _of(home: Home | None) -> Home:
    if home is None:
        raise BackupError("set --data to the data folder of Postgres")
    return home


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BackupError(
            f"--to must be a time such as '2026-11-23 14:00' (UTC unless it has a zone), got {text!r}"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _tell(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.backup", description="Back up and restore an installation.")
    parser.add_argument("--home", help="folder of the installation (.laminar)")
    parser.add_argument(
        "--environment", action="store_true", help="use the installation in the LAMINAR_ variables instead"
    )
    parser.add_argument("--backups", help="folder for backups (LAMINAR_BACKUP_DIR, or backups/ in --home)")
    commands = parser.add_subparsers(dest="command", required=True)
    take = commands.add_parser("take", help="take a backup")
    take.add_argument("--keep", type=int, default=14, help="number of backups to keep; older ones are deleted (14)")
    take.add_argument("--without-secrets", action="store_true", help="leave secrets out of the backup")
    commands.add_parser("follow", help="stream the write-ahead log until interrupted")
    commands.add_parser("list", help="list complete backups")
    restore = commands.add_parser("restore", help="restore an installation")
    restore.add_argument(
        "--to", help="restore up to this time, such as '2026-11-23 14:00' (UTC); default: the newest state"
    )
    restore.add_argument("--id", help="backup to restore from; default: the newest before --to")
    restore.add_argument(
        "--as-backed-up", action="store_true", help="restore the state of the backup, without later writes"
    )
    restore.add_argument("--replace", action="store_true", help="rename an existing database and restore in its place")
    restore.add_argument("--data", help="data folder of Postgres (with --environment)")
    restore.add_argument("--postgres-owner", type=int, help="user id of Postgres (with --environment)")
    restore.add_argument("--files-owner", type=int, help="user id of the control plane (with --environment)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
