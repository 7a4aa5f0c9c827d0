"""The accounts' background task: deletes sessions that are over."""

from celery import shared_task

from backend.accounts.sessions.ending import forget_sessions as forget
from backend.clock import database_now


@shared_task(name="accounts.forget_sessions")
def forget_sessions() -> None:
    forget(now=database_now())
