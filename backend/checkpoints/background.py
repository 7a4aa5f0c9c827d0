"""The background tasks of checkpoints: read back, choose what goes, take its files away. A lost tick is made good."""

from celery import shared_task

from backend.checkpoints import retention, verification
from backend.clock import database_now


@shared_task(name="checkpoints.verify")
def verify() -> None:
    verification.verify_due(now=database_now())


@shared_task(name="checkpoints.tidy")
def tidy() -> None:
    now = database_now()
    retention.sweep(now=now)
    retention.remove_files(now=now)
