"""The background task of budgets: checks all of them. A lost tick only delays a warning."""

from celery import shared_task

from backend.budgets.warnings import warn
from backend.clock import database_now


@shared_task(name="budgets.warn")
def warn_of_budgets() -> None:
    warn(now=database_now())
