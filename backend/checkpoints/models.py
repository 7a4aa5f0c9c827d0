"""Checkpoints that the engine wrote and verified. The newest of a job is where its next attempt goes on."""

from typing import ClassVar

from django.db import models

from backend.ids import new_id
from backend.jobs.models import Job


def _checkpoint_id() -> str:
    return new_id("ckpt")


class Checkpoint(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_checkpoint_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    version = models.PositiveBigIntegerField()
    uri = models.CharField(max_length=2_000)
    manifest_sha256 = models.CharField(max_length=64)
    num_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "attempt", "step"], name="one_checkpoint_per_step")
        ]
