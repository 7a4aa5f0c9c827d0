"""Checkpoints in a separate store: written as the engine writes them, recorded as its facts are."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import LazySettings

from backend.checkpoints import verification
from backend.checkpoints.models import Checkpoint
from backend.checkpoints.services import record_checkpoint
from backend.jobs.models import Job
from backend.jobs.submitting.submit import Submitter, submit_job
from engine.spec.facts import CheckpointSaved
from engine.training.checkpoint.folder import checkpoint_num_bytes, write_checkpoint

CONTENTS = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 5_000,
    "optimizer.safetensors": b"moments" * 9,
    "adapter/adapter_config.json": b"{}",
    "trainer.json": b"{}",
}


Save = Callable[..., Checkpoint]


@pytest.fixture
def store_dir(settings: LazySettings, tmp_path: Path) -> Path:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_dir=tmp_path, store_url="")
    return tmp_path


def write_files(folder: Path, contents: dict[str, bytes] = CONTENTS) -> str:
    def writer(content: bytes) -> Callable[[Path], None]:
        return lambda path: (path.write_bytes(content), None)[1]

    return write_checkpoint(folder, {name: writer(content) for name, content in contents.items()})


@pytest.fixture
def save(job: Job, store_dir: Path, now: datetime) -> Save:
    """Written as the engine writes it, and recorded as its fact is; verified by default."""

    def make(step: int, *, of: Job = job, attempt: int = 1, at: datetime = now, is_verified: bool = True) -> Checkpoint:
        folder = store_dir / "jobs" / of.pk / f"attempt-{attempt}-fence-{attempt}" / "checkpoints" / f"step-{step:06d}"
        fact = CheckpointSaved(
            step=step,
            version=step,
            uri=folder.as_uri(),
            manifest_sha256=write_files(folder),
            num_bytes=checkpoint_num_bytes(folder),
            code_version="engine-1a2b",
        )
        checkpoint = record_checkpoint(of, attempt, fact, now=at)
        if is_verified:
            assert verification.verify(checkpoint, now=at)
            checkpoint.refresh_from_db()
        return checkpoint

    return make


@pytest.fixture
def begin_from(job: Job, make_spec: Any, now: datetime) -> Callable[[Checkpoint], Job]:
    def begin(checkpoint: Checkpoint) -> Job:
        return submit_job(
            team=job.team,
            project=job.project,
            by=Submitter(user=job.created_by, key=None),
            spec=make_spec(),
            pool=job.pool,
            now=now,
            start_from=checkpoint.pk,
        )

    return begin


def folder_of(checkpoint: Checkpoint) -> Path:
    return Path(urlsplit(checkpoint.uri).path)


def state_of(checkpoint: Checkpoint) -> str:
    return Checkpoint.objects.get(pk=checkpoint.pk).state
