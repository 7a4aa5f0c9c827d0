"""The background task of assets: abandons forgotten uploads, and deletes the bytes of deleted assets."""

from celery import shared_task

from backend.assets import removing
from backend.clock import database_now


@shared_task(name="assets.sweep")
def sweep() -> None:
    now = database_now()
    removing.give_up_forgotten(now=now)
    removing.sweep_deleted(now=now)
