"""Writing down what the engine saved."""

from datetime import datetime

from backend.checkpoints.models import Checkpoint
from backend.jobs.models import Job
from engine.spec.facts import CheckpointSaved


def record_checkpoint(job: Job, attempt: int, saved: CheckpointSaved, *, now: datetime) -> Checkpoint:
    """The engine read the manifest back before it said so; the row is written once per attempt and step."""
    checkpoint, _ = Checkpoint.objects.get_or_create(
        job=job,
        attempt=attempt,
        step=saved.step,
        defaults={
            "version": saved.version,
            "uri": saved.uri,
            "manifest_sha256": saved.manifest_sha256,
            "num_bytes": saved.num_bytes,
            "created_at": now,
        },
    )
    return checkpoint
