"""Background tasks of the metrics store. Rows are claimed, so two at once are safe, and a tick continues a lost one."""

from datetime import timedelta

from celery import shared_task
from django.conf import settings

from backend.clock import database_now
from backend.store.chosen import store
from backend.store.port import StoreError
from backend.telemetry.removal import remove_old_logs, remove_old_trajectories
from backend.telemetry.retention import forget_old_spans, reduce_old_series
from backend.telemetry.trajectories.archive import archive_trajectories, jobs_to_archive


@shared_task(name="telemetry.archive_trajectories", throws=(StoreError,))
def archive_all_trajectories() -> None:
    now = database_now()
    for job_id in jobs_to_archive(now):
        archive_trajectories(job_id, store(), now=now)


@shared_task(name="telemetry.reduce_old_series")
def reduce_series() -> None:
    keep, now = timedelta(days=settings.ENVIRONMENT.keep_points_days), database_now()
    reduce_old_series(keep=keep, now=now)
    forget_old_spans(keep=keep, now=now)


@shared_task(name="telemetry.remove_old", throws=(StoreError,))
def remove_old() -> None:
    """A kind kept for 0 days is never removed: 0 means forever."""
    environment, now = settings.ENVIRONMENT, database_now()
    if environment.keep_logs_days:
        remove_old_logs(keep=timedelta(days=environment.keep_logs_days), now=now)
    if environment.keep_trajectories_days:
        remove_old_trajectories(store(), keep=timedelta(days=environment.keep_trajectories_days), now=now)
