"""The background task of operating: a look at the store, which web processes read of and never make themselves."""

from celery import shared_task

from backend.operating.status import OF_THE_STORE, look_again


@shared_task(name="operating.look_at_store")
def look_at_store() -> None:
    look_again(OF_THE_STORE)
