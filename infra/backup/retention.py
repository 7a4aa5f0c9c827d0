"""What is kept: the newest backups, and everything written since the oldest of them.

Invariant: a backup goes by losing its name first; content goes only when no backup that is left names it.
"""

import shutil
from collections.abc import Callable

from infra.backup.errors import BackupError
from infra.backup.manifest import Manifest, read_files
from infra.backup.postgres import SEGMENT_DIGITS
from infra.backup.repository import MAKING, Repository

Tell = Callable[[str], None]


def forget_older(repository: Repository, *, keep: int, tell: Tell) -> None:
    if keep < 1:
        raise BackupError(f"--keep: at least 1 backup must be kept, got {keep}")
    backups = repository.backups()
    kept, going = backups[-keep:], backups[:-keep]
    for manifest in going:
        gone = repository.point(f"{manifest.id}{MAKING}")
        repository.point(manifest.id).rename(gone)
        shutil.rmtree(gone)
        (repository.secrets / f"{manifest.id}.json").unlink(missing_ok=True)
        tell(f"deleted {manifest.id}")
    if going:
        _forget_written(repository, kept)
        _forget_objects(repository, kept)


def _forget_written(repository: Repository, kept: list[Manifest]) -> None:
    first: dict[str, str] = {}
    for manifest in reversed(kept):
        first[manifest.era] = manifest.first_segment
    for era in (repository.folder / "wal").iterdir():
        if era.name not in first:
            shutil.rmtree(era)
            continue
        for segment in era.iterdir():
            if len(segment.name) >= SEGMENT_DIGITS and segment.name[:SEGMENT_DIGITS] < first[era.name]:
                segment.unlink()


def _forget_objects(repository: Repository, kept: list[Manifest]) -> None:
    named: set[str] = set()
    for manifest in kept:
        files = read_files(repository.point(manifest.id) / "files.jsonl", sha256=manifest.files_sha256)
        named |= {file.sha256 for file in files}
    for path in (repository.folder / "objects").glob("*/*"):
        if path.name not in named:
            path.unlink()
    for left in (repository.folder / "objects").glob(".making*"):
        left.unlink()
