"""The API's background task: deletes responses of idempotency keys after a day, and buckets that are full again."""

from celery import shared_task

from backend.api import background_times  # noqa: F401  # connects its receivers in the worker
from backend.api.idempotency import forget_expired_keys
from backend.api.limits.counters import forget_full_buckets
from backend.clock import database_now


@shared_task(name="api.forget_expired_keys")
def forget_keys() -> None:
    now = database_now()
    forget_expired_keys(now=now)
    forget_full_buckets(now=now)
