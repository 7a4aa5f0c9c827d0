"""The background task of budgets: a look at all of them. A lost tick costs nothing but a later warning."""

from celery import shared_task

from backend.budgets.warnings import warn
from backend.clock import database_now


@shared_task(name="budgets.warn")
def warn_of_budgets() -> None:
    warn(now=database_now())
