"""A backup, step by step.

    what was written since ─▶ base ─▶ files ─▶ what was written meanwhile ─▶ secrets ─▶ manifest

Invariants:
- files are copied after the base: whatever a row of the base names was written before it;
- the manifest comes last; see `repository`.
"""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

from infra.backup.errors import BackupError
from infra.backup.files import contents_of, save_files
from infra.backup.manifest import Manifest, SavedFile, read_files, sha256_of, write_durably, write_files
from infra.backup.postgres import Server, first_segment
from infra.backup.repository import Repository
from infra.backup.retention import forget_older
from infra.backup.source import Source, secrets_document

Tell = Callable[[str], None]
FILES = "files.jsonl"


def take_backup(source: Source, repository: Repository, *, keep: int, with_secrets: bool, tell: Tell) -> Manifest:
    began, begun_at = datetime.now(UTC), time.monotonic()
    server = Server(source.database_url, source.tables_url)
    with repository.writing():
        id = f"{began:%Y%m%dT%H%M%S}{began.microsecond // 1000:03}Z"
        making = repository.begin(id)
        era = server.era()
        tell("database: write-ahead log since the last backup")
        server.catch_up(repository.wal(era))
        tell("database: full copy, verified")
        server.copy_base(making / "base")
        finished = datetime.now(UTC)
        files = save_files(contents_of(source), repository, _known(repository), tell)
        server.catch_up(repository.wal(era))
        if with_secrets:
            tell("secrets")
            write_durably(repository.secrets / f"{id}.json", secrets_document(source), mode=0o600)
        tell("manifest")
        manifest = Manifest(
            id=id,
            began_at=began.isoformat(),
            finished_at=finished.isoformat(),
            era=era,
            first_segment=first_segment(making / "base"),
            base_sha256=sha256_of(making / "base" / "backup_manifest"),
            files_sha256=write_files(making / FILES, files),
            num_files=len(files),
            num_bytes=sum(file.num_bytes for file in files),
        )
        repository.finish(making, manifest)
        tell("whole")
        server.note_backup(time.monotonic() - begun_at)
        forget_older(repository, keep=keep, tell=tell)
    return manifest


def files_of(repository: Repository, manifest: Manifest) -> list[SavedFile]:
    return read_files(repository.point(manifest.id) / FILES, sha256=manifest.files_sha256)


def check_whole(repository: Repository, manifest: Manifest) -> None:
    """Everything that the manifest names, but for the base's own files, which pg_verifybackup reads."""
    if sha256_of(repository.point(manifest.id) / "base" / "backup_manifest") != manifest.base_sha256:
        raise BackupError(f"the database copy of {manifest.id} does not match its manifest; take another backup")
    for file in files_of(repository, manifest):
        content = repository.object(file.sha256)
        if not content.is_file() or sha256_of(content) != file.sha256:
            raise BackupError(f"{content}, the content of {file.name}, is missing or damaged")


def _known(repository: Repository) -> list[SavedFile]:
    """Of the last backup, if their content is still there."""
    backups = repository.backups()
    files = files_of(repository, backups[-1]) if backups else []
    return [file for file in files if os.access(repository.object(file.sha256), os.R_OK)]
