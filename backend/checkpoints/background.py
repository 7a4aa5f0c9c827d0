"""The background tasks of checkpoints: verification, retention, deletion of files. A lost tick only delays them."""

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
