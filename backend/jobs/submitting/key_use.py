"""Use of an API key: the devices that its jobs hold and have used, for its ceilings.

A key's jobs are those whose `submitted` event names it as the actor; the index `job_submitted_by` serves that query.
Use is computed from reservations, never from what an engine reports.
"""

from datetime import datetime

from django.db import connection

from backend.accounts.models import ApiKey
from backend.accounts.people.ceilings import KeyUse, refuse_over_ceiling
from backend.errors import NotFound
from backend.jobs.attempts.resume_points import job_of_checkpoint
from backend.jobs.models import TERMINAL_STATES
from engine.spec.job import JobSpec

_USE = """
SELECT coalesce(sum(devices) FILTER (WHERE NOT ended), 0),
       coalesce(sum(CASE WHEN ended THEN used ELSE greatest(used, devices * max_runtime_s) END), 0)
FROM (
    SELECT job.devices, job.max_runtime_s, job.state = ANY(%(ended)s) AS ended, (
        SELECT coalesce(sum(
            held.devices * extract(epoch FROM coalesce(held.released_at, %(now)s) - held.created_at)
        ), 0)
        FROM pools_reservation held WHERE held.job_id = job.id
    ) AS used
    FROM jobs_jobevent made JOIN jobs_job job ON job.id = made.job_id
    WHERE made.type = 'submitted' AND made.actor = %(actor)s
) AS jobs_of_the_key
"""


def use_of_key(key: ApiKey, *, now: datetime) -> KeyUse:
    with connection.cursor() as db:
        db.execute(_USE, {"ended": [str(state) for state in TERMINAL_STATES], "now": now, "actor": f"key:{key.pk}"})
        devices, gpu_seconds = db.fetchone()
    return KeyUse(devices=int(devices), gpu_seconds=float(gpu_seconds))


def refuse_spec_over_ceiling(key: ApiKey, spec: JobSpec, *, now: datetime) -> None:
    """Call this in the transaction that creates the job, before creating it."""
    refuse_over_ceiling(
        key,
        devices=spec.num_devices,
        gpu_seconds=spec.num_devices * spec.max_runtime_s,
        use_of=lambda held: use_of_key(held, now=now),
    )


def refuse_checkpoint_beyond_project(key: ApiKey, checkpoint: str) -> None:
    """A key limited to a project cannot reach another project's weights by starting from them. Raises `NotFound`."""
    if key.project_id is None or not checkpoint:
        return
    origin = job_of_checkpoint(key.team, checkpoint)
    if origin is None or origin.project_id != key.project_id:
        raise NotFound("Checkpoint not found.")
