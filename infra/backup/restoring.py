"""An installation as it was: at the end of what was written, at a moment, or as a backup found it.

    refuse what is there ─▶ verify ─▶ base ─▶ what was written since ─▶ files, what is missing ─▶ Postgres recovers

Invariants:
- a database folder with anything in it is refused, or put aside (`--replace`), and never written into; one that a
  server has open is refused in any case;
- the new folder appears by one rename, with the word that it has to be recovered: no server starts from half of it;
- files of a later backup come along: rows of the time between the two name them.
"""

import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from infra.backup.errors import BackupError
from infra.backup.files import add_missing, contents_of
from infra.backup.manifest import Manifest, SavedFile, sync_folder
from infra.backup.postgres import SEGMENT_DIGITS, sync_base, verify_base
from infra.backup.repository import Repository
from infra.backup.source import Source
from infra.backup.taking import check_whole, files_of

Tell = Callable[[str], None]
WRITTEN: Final = "laminar_wal"


def chosen_backup(repository: Repository, *, id: str | None, to: datetime | None) -> Manifest:
    backups = repository.backups()
    if not backups:
        raise BackupError(f"there is no complete backup in {repository.folder}")
    if id is not None:
        found = [manifest for manifest in backups if manifest.id == id]
    else:
        found = [manifest for manifest in backups if to is None or manifest.finished <= to]
    if not found:
        known = ", ".join(f"{manifest.id} (completed {manifest.finished_at[:19]})" for manifest in backups)
        raise BackupError(f"no backup {id or f'was completed before {to}'}; choose from {known}")
    return found[-1]


def restore_database(
    repository: Repository, manifest: Manifest, data: Path, *, to: datetime | None, only_base: bool, replace: bool,
    is_running: bool, owner: int | None, tell: Tell,
) -> None:  # fmt: skip
    """The folder, ready for a server that recovers when it starts."""
    if is_running:
        raise BackupError(f"Postgres is running on {data}; stop the site first (`make down`, `docker compose down`)")
    _refuse_or_put_aside(data, replace=replace, tell=tell)
    check_whole(repository, manifest)
    base = repository.point(manifest.id) / "base"
    tell(f"verifying {manifest.id}")
    verify_base(base)
    making = data.with_name(f"{data.name}.restoring")
    shutil.rmtree(making, ignore_errors=True)
    tell("copying the database")
    shutil.copytree(base, making, symlinks=True)
    making.chmod(0o700)
    _copy_written(repository.wal(manifest.era), making / WRITTEN, first=manifest.first_segment)
    settings = making / "postgresql.auto.conf"
    kept = [line for line in settings.read_text().splitlines() if not line.startswith(("recovery_", "restore_"))]
    settings.write_text("\n".join([*kept, _recovery(to, only_base=only_base)]))
    (making / "recovery.signal").touch()
    if owner is not None:
        for above, folders, names in os.walk(making):
            for name in (*folders, *names):
                os.chown(Path(above) / name, owner, owner, follow_symlinks=False)
        os.chown(making, owner, owner)
    sync_base(making)
    making.rename(data)
    sync_folder(data.parent)


def restore_files(repository: Repository, manifest: Manifest, target: Source, *, owner: int | None, tell: Tell) -> None:
    later = [each for each in repository.backups() if each.finished > manifest.finished][:1]
    files: dict[tuple[str, str], SavedFile] = {}
    for each in (*later, manifest):
        files |= {(file.root, file.name): file for file in files_of(repository, each)}
    for contents in contents_of(target, owner=owner):
        add_missing(files.values(), contents, repository, tell)


def is_running_here(data: Path) -> bool:
    """By the process that its folder names; that number may be another's by now, or of one that is dead."""
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return False


def _refuse_or_put_aside(data: Path, *, replace: bool, tell: Tell) -> None:
    if not data.exists() or not any(data.iterdir()):
        if data.exists():
            data.rmdir()
        return
    if not replace:
        raise BackupError(f"{data} is not empty; --replace renames it and restores in its place")
    number = sum(1 for _ in data.parent.glob(f"{data.name}.replaced-*")) + 1
    aside = data.with_name(f"{data.name}.replaced-{number}")
    data.rename(aside)
    tell(f"renamed the previous data to {aside}; remove it once the site works")


def _copy_written(era: Path, to: Path, *, first: str) -> None:
    """The last segment is not full yet; recovery reads it as far as it goes."""
    to.mkdir(mode=0o700)
    for path in sorted(era.iterdir()):
        name = path.name.removesuffix(".partial")
        is_segment = len(name) == SEGMENT_DIGITS
        if name.endswith(".history") or (is_segment and name >= first and not (to / name).exists()):
            shutil.copyfile(path, to / name)


def _recovery(to: datetime | None, *, only_base: bool) -> str:
    """One target at most: Postgres refuses a second, even an empty one, such as an earlier restore wrote here."""
    target = ""
    if only_base:
        target = "recovery_target = 'immediate'"
    elif to is not None:
        target = f"recovery_target_time = '{to.isoformat(sep=' ')}'"
    return f"""
restore_command = 'cp {WRITTEN}/%f "%p"'
recovery_end_command = 'rm -rf {WRITTEN}'
{target}
recovery_target_timeline = 'latest'
recovery_target_action = 'promote'
"""
