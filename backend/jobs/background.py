"""Background tasks of jobs: two lines each, each with a safety net.

Normally `jobs.deliver` moves jobs on. The periodic tasks do whatever is overdue: even if every message is lost, jobs
still run to their end.
"""

import time

from celery import shared_task

from backend.clock import database_now
from backend.jobs import outbox
from backend.jobs.attempts.launcher import ray_of
from backend.jobs.attempts.launching import gather_evidence, launch_attempt, stop_superseded
from backend.jobs.attempts.tracing import send_trace
from backend.jobs.nudge import DELIVER, publish_now
from backend.jobs.queue.scheduling import pools_due, schedule_pool
from backend.jobs.selectors import late_pools
from backend.jobs.submitting.validation import forgotten_validations, validate_job
from backend.pools.clusters.dashboard import LauncherError
from backend.pulses import CANARY

TICK_WORKS_S = 5.0  # after that, the rest is left to the next tick


HANDLERS: dict[str, outbox.Handler] = {
    "schedule": lambda pool_id: _schedule(pool_id),
    "launch": lambda job_id: launch_attempt(job_id, ray_of),
    "stop": lambda job_id: stop_superseded(job_id, ray_of),
    "validate": lambda job_id: validate_job(job_id, now=database_now()),
    "evidence": lambda job_id: gather_evidence(job_id, ray_of),
    "trace": send_trace,
}


def _schedule(pool_id: str) -> None:
    schedule_pool(pool_id, now=database_now())


@shared_task(name=DELIVER, throws=(LauncherError,))  # expected at times: a log line, no traceback
def deliver(ids: list[int]) -> None:
    outbox.deliver(ids, HANDLERS, database_now())


@shared_task(name="jobs.dispatch_outbox")
def dispatch_outbox() -> None:
    now = database_now()
    ends_at = time.monotonic() + TICK_WORKS_S
    outbox.deliver_overdue(now, HANDLERS, lambda: time.monotonic() < ends_at)
    outbox.dispatch_due(now, publish_now)


@shared_task(name=CANARY)
def canary() -> None:
    """Does nothing: its completion is recorded like any other task's, which is its purpose."""


@shared_task(name="jobs.schedule_pool")
def schedule_one_pool(pool_id: str) -> None:
    _schedule(pool_id)


@shared_task(name="jobs.schedule_all_pools")
def schedule_all_pools() -> None:
    """One message per pool, so that pools do not block each other. Pools whose message was not taken run here."""
    now = database_now()
    late = set(late_pools(now))
    for pool_id in pools_due():
        if pool_id in late:
            schedule_pool(pool_id, now=now)
        else:
            schedule_one_pool.delay(pool_id)


@shared_task(name="jobs.validate_waiting")
def validate_waiting() -> None:
    """Validates jobs whose message was lost, oldest first."""
    for job_id in forgotten_validations(database_now()):
        validate_job(job_id, now=database_now())
