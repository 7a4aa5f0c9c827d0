"""Changes to a job: its name, its tags, and how it waits."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from backend.audit.services import record_action
from backend.errors import FieldError, InvalidState
from backend.jobs.lifecycle import locked_job, record_event
from backend.jobs.models import WAITING_STATES, Job
from backend.jobs.outbox import enqueue

CHANGEABLE_WHILE_WAITING = frozenset({"priority", "max_runtime_s"})


def change_job(job_id: str, changes: Mapping[str, Any], *, actor: str, now: datetime) -> Job:
    """Changes name and tags of an unfinished job, priority and runtime of a waiting one. The caller holds the lock and
    has compared the version. Raises `InvalidState`."""
    job = locked_job(job_id)
    if job.is_terminal:
        raise InvalidState(
            f"The job has ended ({job.state}) and can no longer be changed.", state=job.state, allowed=[]
        )
    too_late = sorted(set(changes) & CHANGEABLE_WHILE_WAITING) if job.state not in WAITING_STATES else []
    if too_late:
        errors = [
            FieldError(pointer=f"/{name}", code="too_late", message="can be changed only while the job waits")
            for name in too_late
        ]
        raise InvalidState(
            f"{' and '.join(too_late).capitalize()} can be changed only while the job waits; it is {job.state}.",
            errors=errors,
            state=job.state,
            allowed=[],
        )
    before = {name: getattr(job, name) for name in changes if getattr(job, name) != changes[name]}
    if not before:
        return job
    after = {name: changes[name] for name in before}
    Job.objects.filter(pk=job.pk).update(**after, version=job.version + 1)
    job.refresh_from_db()
    record_event(job, "changed", actor=actor, now=now, data={"before": before, "after": after})
    enqueue("schedule", job.pool_id, now)
    data = {"before": before, "after": after}
    record_action(team_id=job.team_id, actor=actor, action="job.change", target=job.pk, now=now, data=data)
    return job
