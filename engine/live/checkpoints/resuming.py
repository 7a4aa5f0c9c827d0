"""An attempt's checkpoints: the trainer's folder, and in it the progress of the data.

    step-000050/            weights, optimizer, tokenizer, manifest.json   (written by the trainer)
    step-000050/progress/   progress.json, manifest.json                   (written afterwards, with the first's hash)

Invariants:
- choosing a checkpoint reads its manifests and no weights; the process that loads it verifies the parts that it needs;
- a checkpoint is reported only after all parts of both manifests were read back, each by the process that wrote it,
  before the manifest names the part;
- step and consumed prompts are restored from the same checkpoint as the weights, or nothing is restored;
- each checkpoint of an attempt descends from the one before it;
- a trainer that restarts within its attempt starts from a checkpoint that was reported to the driver. Reports come in
  order, so the driver knows every step before it, and unreported steps are trained again.
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
# The manifest of a checkpoint that a run has passed over.
PASSED_OVER_FILE: Final = "manifest.passed-over.json"


class SavedProgress(Strict):
    step: int = Field(ge=0)
    trainer_manifest_sha256: str
    ended: tuple[tuple[int, int], ...]
    ledger: dict[str, int]
    base_is_due: bool = False


class ResumePoint(Strict):
    folder: Path
    origin: str | None = None
    """The store address of parts that the folder lacks."""
    step: int
    progress: SavedProgress

    def data_progress(self) -> DataProgress:
        saved = self.progress
        ledger = tuple(sorted(saved.ledger.items()))
        return DataProgress(ended=saved.ended, ledger=ledger, base_is_due=saved.base_is_due)

    def without_base(self) -> "ResumePoint":
        """For a job that did not begin with these base weights, or evaluates nothing else."""
        return self.model_copy(update={"progress": self.progress.model_copy(update={"base_is_due": False})})


def finish_checkpoint(folder: Path, *, step: int, progress: DataProgress) -> CheckpointWritten:
    """Adds the data's progress to a checkpoint whose other parts are written and read back."""
    manifest_sha256, _ = read_manifest(folder)
    saved = SavedProgress(
        step=step,
        trainer_manifest_sha256=manifest_sha256,
        ended=progress.ended,
        ledger=dict(progress.ledger),
        base_is_due=progress.base_is_due,
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
    """Opens a checkpoint that has all its parts; some may be damaged. `remote`: the store of an s3 address; by default
    the environment's. `is_given_up`: the caller no longer waits."""
    origin = uri if uri.startswith("s3://") else None
    folder = _open_remote(uri, remote, is_given_up) if origin else folder_of(uri)
    manifest_sha256 = survey_checkpoint(folder)
    verify_checkpoint(folder / PROGRESS_FOLDER)
    try:
        progress = SavedProgress.model_validate_json((folder / PROGRESS_FOLDER / PROGRESS_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise CheckpointUnverified(f"{folder}: the data's progress cannot be read: {error}") from error
    if progress.trainer_manifest_sha256 != manifest_sha256:
        raise CheckpointUnverified(f"{folder}: the data's progress belongs to other weights")
    return ResumePoint(folder=folder, origin=origin, step=progress.step, progress=progress)


def _open_remote(uri: str, remote: RemoteCheckpoints | None, is_given_up: Callable[[], bool]) -> Path:
    remote = remote or RemoteCheckpoints.from_environment()
    if remote is None:
        raise ValueError(f"resume_from: {uri} is in a store; set LAMINAR_STORE_URL on this node")
    return remote.open(uri, is_given_up=is_given_up)


def go_back(folder: Path, load: Callable[[ResumePoint], None], *, reported: int) -> ResumePoint | None:
    """Loads the newest intact checkpoint under this folder; None if there is none. `load` changes nothing if it finds
    damage. `reported`: the newest step whose checkpoint was reported to the driver; 0: none was.

    A checkpoint that is passed over never counts again, even if its bytes can be read the next time: later weights do
    not descend from it.
    """
    for candidate in sorted(folder.glob("step-*"), reverse=True):
        try:
            point = open_checkpoint(str(candidate))
            if point.step > reported:
                raise CheckpointUnverified(f"{candidate}: no checkpoint after step {reported} was reported")
            load(point)
            return point
        except CheckpointUnverified as error:
            log.warning("skipped an unverified checkpoint: %s", error)
            with suppress(FileNotFoundError):  # an unfinished checkpoint has no manifest
                (candidate / MANIFEST_FILE).rename(candidate / PASSED_OVER_FILE)
    return None


def forget_older(folder: Path) -> None:
    """Deletes older local copies. This one and the one before it stay, for a trainer that restarts on this host."""
    earlier = [other for other in folder.parent.glob("step-*") if other.name < folder.name]
    earlier.sort(key=lambda other: ((other / MANIFEST_FILE).exists(), other.name))  # passed-over ones go first
    for other in earlier[:-1]:
        (other / MANIFEST_FILE).unlink(missing_ok=True)
        shutil.rmtree(other, ignore_errors=True)


def refuse_outside(uri: str, jobs: Path) -> None:
    """Raises `ValueError` for an address that an engine reported and that leads outside of what jobs wrote."""
    below = urlsplit(uri).path.partition("/jobs/")[2] if uri.startswith("s3://") else None
    if below is None:
        is_within = jobs.resolve() in folder_of(uri).resolve().parents
    else:
        is_within = bool(below) and ".." not in unquote(uri).split("/")
    if not is_within:
        raise ValueError(f"resume_from: must be a checkpoint that a job wrote, in {jobs}; got {uri!r}")


def is_of_job(uri: str, folder: Path) -> bool:
    """True if the checkpoint's address is below this job's folder: an attempt of the same job wrote it."""
    if uri.startswith("s3://"):
        return unquote(urlsplit(uri).path).partition("/jobs/")[2].startswith(f"{folder.name}/")
    return folder.resolve() in folder_of(uri).resolve().parents


def folder_of(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise ValueError(f"resume_from: must be a path or a file:// address; got {uri!r}")
    return Path(unquote(parts.path)) if parts.scheme else Path(uri)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
