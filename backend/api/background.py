"""The background task of the API: answers kept for idempotency keys are forgotten once their day is over."""

from celery import shared_task

from backend.api.idempotency import forget_expired_keys
from backend.clock import database_now


@shared_task(name="api.forget_expired_keys")
def forget_keys() -> None:
    forget_expired_keys(now=database_now())
