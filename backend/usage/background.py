"""The background task of usage: it settles reservations that are over. A lost tick costs nothing but a later one."""

from celery import shared_task

from backend.usage.services import settle_reservations


@shared_task(name="usage.settle")
def settle() -> None:
    settle_reservations()
