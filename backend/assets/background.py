"""The background task of assets: gives up forgotten uploads, and takes away the bytes of what was deleted."""

from celery import shared_task

from backend.assets import removing
from backend.clock import database_now


@shared_task(name="assets.sweep")
def sweep() -> None:
    now = database_now()
    removing.give_up_forgotten(now=now)
    removing.sweep_deleted(now=now)
