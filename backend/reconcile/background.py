"""The background tasks of reconciliation. Twice at once or never: the lease and the next tick see to it."""

from celery import shared_task

from backend.jobs.attempts.launcher import LauncherError
from backend.jobs.background import ray
from backend.reconcile import round as rounds


@shared_task(name="reconcile.reconcile")
def reconcile() -> None:
    rounds.reconcile(ray())


@shared_task(name="reconcile.sweep_zombies", throws=(LauncherError,))
def sweep_zombies() -> None:
    rounds.sweep_zombies(ray())
