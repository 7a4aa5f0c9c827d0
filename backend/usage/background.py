"""Periodic task of usage: settles ended reservations. A lost tick only delays."""

from celery import shared_task

from backend.usage.services import settle_reservations


@shared_task(name="usage.settle")
def settle() -> None:
    settle_reservations()
