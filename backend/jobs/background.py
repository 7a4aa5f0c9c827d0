"""The background tasks of jobs: two lines each, a safety net under every one.

`jobs.deliver` is the only mover; whatever message is lost, `dispatch_outbox` and `schedule_all_pools` make good.
"""

from functools import cache

from celery import shared_task

from backend.clock import database_now
from backend.jobs import outbox
from backend.jobs.launcher import LauncherError, RayLauncher
from backend.jobs.launching import launch_attempt, stop_superseded
from backend.jobs.models import JobState
from backend.jobs.nudge import DELIVER, publish_now
from backend.jobs.scheduling import schedule_pool
from backend.pools.models import ResourcePool


@cache
def ray() -> RayLauncher:
    return RayLauncher.from_settings()


HANDLERS: dict[str, outbox.Handler] = {
    "schedule": lambda pool_id: _schedule(pool_id),
    "launch": lambda job_id: launch_attempt(job_id, ray()),
    "stop": lambda job_id: stop_superseded(job_id, ray()),
}


def _schedule(pool_id: str) -> None:
    schedule_pool(pool_id, now=database_now())


@shared_task(name=DELIVER, throws=(LauncherError,))  # expected now and then: a line in the log, no traceback
def deliver(ids: list[int]) -> None:
    outbox.deliver(ids, HANDLERS, database_now())


@shared_task(name="jobs.dispatch_outbox")
def dispatch_outbox() -> None:
    outbox.dispatch_due(database_now(), publish_now)


@shared_task(name="jobs.schedule_pool")
def schedule_one_pool(pool_id: str) -> None:
    _schedule(pool_id)


@shared_task(name="jobs.schedule_all_pools")
def schedule_all_pools() -> None:
    """A message a pool, so that one pool's trouble is not another's."""
    for pool_id in ResourcePool.objects.filter(jobs__state=JobState.QUEUED).values_list("pk", flat=True).distinct():
        schedule_one_pool.delay(pool_id)
