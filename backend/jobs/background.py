"""The background tasks of jobs: two lines each, a safety net under every one.

`jobs.deliver` is the usual mover. The ticks do by themselves what is late: with every other message lost, jobs still
go their whole way.
"""

import time

from celery import shared_task

from backend.clock import database_now
from backend.jobs import outbox
from backend.jobs.attempts.launcher import ray_of
from backend.jobs.attempts.launching import gather_evidence, launch_attempt, stop_superseded
from backend.jobs.attempts.tracing import send_trace
from backend.jobs.line.scheduling import pools_due, schedule_pool
from backend.jobs.nudge import DELIVER, publish_now
from backend.jobs.selectors import late_pools
from backend.jobs.submitting.validation import forgotten_validations, validate_job
from backend.pools.clusters.dashboard import LauncherError
from backend.pulses import CANARY

TICK_WORKS_S = 5.0  # then it leaves the rest to the next one


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


@shared_task(name=DELIVER, throws=(LauncherError,))  # expected now and then: a line in the log, no traceback
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
    """That it came to its end is noted as of every other one, and is all there is to it."""


@shared_task(name="jobs.schedule_pool")
def schedule_one_pool(pool_id: str) -> None:
    _schedule(pool_id)


@shared_task(name="jobs.schedule_all_pools")
def schedule_all_pools() -> None:
    """A message a pool, so that one pool's trouble is not another's. One that nobody took is seen to here."""
    now = database_now()
    late = set(late_pools(now))
    for pool_id in pools_due():
        if pool_id in late:
            schedule_pool(pool_id, now=now)
        else:
            schedule_one_pool.delay(pool_id)


@shared_task(name="jobs.validate_waiting")
def validate_waiting() -> None:
    """Those whose message was lost, the oldest first."""
    for job_id in forgotten_validations(database_now()):
        validate_job(job_id, now=database_now())
