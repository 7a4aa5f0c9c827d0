"""An attempt's checkpoints: the trainer's folder, and beside it the progress of the data.

    step-000050/            weights, optimizer, tokenizer, manifest.json   (written by the trainer)
    step-000050/progress/   progress.json, manifest.json                   (written after it, names its hash)

Invariants:
- whoever decides which checkpoint it is reads its manifests and no weights; who loads it reads back what it needs;
- a checkpoint is reported only when all parts of both manifests were read back, each by the process that wrote it:
  before its name stands in a manifest;
- step and consumed prompts are restored from the very checkpoint that the weights are from, or nothing is;
- each checkpoint of an attempt descends from the one before it;
- a trainer that begins again beside its driver begins from a checkpoint that the driver was told of. Reports come in
  order: so it was told of every step before, and what it was not told of is trained again.
"""

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pydantic import Field, ValidationError

from engine.live.checkpoints.store import RemoteCheckpoints
from engine.pipeline.messages.to_trainer import CheckpointWritten
from engine.pipeline.records import DataProgress
from engine.spec.checkpoint_manifest import MANIFEST_FILE, PROGRESS_FOLDER
from engine.spec.strict import Strict
from engine.training.checkpoint.folder import (
    CheckpointUnverified,
    checkpoint_num_bytes,
    read_manifest,
    survey_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)

log = logging.getLogger(__name__)

PROGRESS_FILE: Final = "progress.json"
# The manifest of a checkpoint that a run went back beyond.
PASSED_OVER_FILE: Final = "manifest.passed-over.json"


class SavedProgress(Strict):
    step: int = Field(ge=0)
    trainer_manifest_sha256: str
    ended: tuple[tuple[int, int], ...]
    ledger: dict[str, int]


class ResumePoint(Strict):
    folder: Path
    origin: str | None = None
    """The address of a store that has what is not in the folder."""
    step: int
    progress: SavedProgress

    def data_progress(self) -> DataProgress:
        return DataProgress(ended=self.progress.ended, ledger=tuple(sorted(self.progress.ledger.items())))


def finish_checkpoint(folder: Path, *, step: int, progress: DataProgress) -> CheckpointWritten:
    """The trainer's part is written, and was read back by who wrote it: put the data's beside it."""
    manifest_sha256, _ = read_manifest(folder)
    saved = SavedProgress(
        step=step,
        trainer_manifest_sha256=manifest_sha256,
        ended=progress.ended,
        ledger=dict(progress.ledger),
    )
    content = saved.model_dump_json(indent=2).encode()
    write_checkpoint(folder / PROGRESS_FOLDER, {PROGRESS_FILE: lambda path: _write(path, content)})
    verify_checkpoint(folder / PROGRESS_FOLDER)
    return CheckpointWritten(
        step=step,
        uri=folder.resolve().as_uri(),
        manifest_sha256=manifest_sha256,
        num_bytes=checkpoint_num_bytes(folder) + checkpoint_num_bytes(folder / PROGRESS_FOLDER),
    )


def open_checkpoint(
    uri: str, remote: RemoteCheckpoints | None = None, *, is_given_up: Callable[[], bool] = lambda: False
) -> ResumePoint:
    """One of which every part is there, if perhaps damaged. `remote`: where an s3 address leads; by default, where the
    environment says. `is_given_up`: nobody waits for it any more."""
    origin = uri if uri.startswith("s3://") else None
    folder = _opened(uri, remote, is_given_up) if origin else folder_of(uri)
    manifest_sha256 = survey_checkpoint(folder)
    verify_checkpoint(folder / PROGRESS_FOLDER)
    try:
        progress = SavedProgress.model_validate_json((folder / PROGRESS_FOLDER / PROGRESS_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise CheckpointUnverified(f"{folder}: the data's progress cannot be read: {error}") from error
    if progress.trainer_manifest_sha256 != manifest_sha256:
        raise CheckpointUnverified(f"{folder}: the data's progress belongs to other weights")
    return ResumePoint(folder=folder, origin=origin, step=progress.step, progress=progress)


def _opened(uri: str, remote: RemoteCheckpoints | None, is_given_up: Callable[[], bool]) -> Path:
    remote = remote or RemoteCheckpoints.from_environment()
    if remote is None:
        raise ValueError(f"resume_from: {uri} is in a store, and LAMINAR_STORE_URL names none on this node")
    return remote.open(uri, is_given_up=is_given_up)


def go_back(folder: Path, load: Callable[[Path], None], *, told: int) -> ResumePoint | None:
    """To the last one under this folder that is whole, and is loaded; None: there is none. `load`: it changes nothing
    where it finds one that is not whole. `told`: the newest step whose checkpoint the driver was told of; 0: of none.

    Those passed over never count again, even if their bytes can be read the next time: what is trained from here on
    does not descend from them.
    """
    for candidate in sorted(folder.glob("step-*"), reverse=True):
        try:
            point = open_checkpoint(str(candidate))
            if point.step > told:
                raise CheckpointUnverified(f"{candidate}: the driver was told of none after step {told}")
            load(point.folder)
            return point
        except CheckpointUnverified as error:
            log.warning("checkpoint passed over: %s", error)
            with suppress(FileNotFoundError):  # it was never finished
                (candidate / MANIFEST_FILE).rename(candidate / PASSED_OVER_FILE)
    return None


def forget_older(folder: Path) -> None:
    """Of the local copies: this one and the one before stay, for a trainer that dies and begins again beside them."""
    earlier = [other for other in folder.parent.glob("step-*") if other.name < folder.name]
    earlier.sort(key=lambda other: ((other / MANIFEST_FILE).exists(), other.name))  # one passed over is no help
    for other in earlier[:-1]:
        (other / MANIFEST_FILE).unlink(missing_ok=True)
        shutil.rmtree(other, ignore_errors=True)


def refuse_outside(uri: str, jobs: Path) -> None:
    """An engine reported this address; it is followed only to what a job wrote. Raises `ValueError`."""
    below = urlsplit(uri).path.partition("/jobs/")[2] if uri.startswith("s3://") else None
    if below is None:
        is_within = jobs.resolve() in folder_of(uri).resolve().parents
    else:
        is_within = bool(below) and ".." not in unquote(uri).split("/")
    if not is_within:
        raise ValueError(f"resume_from: a checkpoint that a job wrote, in {jobs}, got {uri!r}")


def folder_of(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise ValueError(f"resume_from: a path or a file:// address, got {uri!r}")
    return Path(unquote(parts.path)) if parts.scheme else Path(uri)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
