"""The background task of operating: checks the store, for web processes, which only read the result."""

from celery import shared_task

from backend.operating.status import OF_THE_STORE, check_again


@shared_task(name="operating.check_store")
def check_store() -> None:
    check_again(OF_THE_STORE)
