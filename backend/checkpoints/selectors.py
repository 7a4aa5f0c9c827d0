"""Checkpoints of a job, newest first."""

from django.db.models import QuerySet

from backend.checkpoints.models import Checkpoint
from backend.jobs.models import Job


def checkpoints_of(job: Job) -> QuerySet[Checkpoint]:
    """A later attempt went on from an earlier one's checkpoint, so its own are newer whatever their step."""
    return Checkpoint.objects.filter(job=job).order_by("-attempt", "-step")


def newest_checkpoint(job: Job) -> Checkpoint | None:
    return checkpoints_of(job).first()
