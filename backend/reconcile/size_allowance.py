"""The time that a job's size adds to the deadlines of its start, its pause or its stall.

Invariants:
- nothing is added if the model's shape or its devices are unknown: the deadlines of judging.py are minimums;
- a model's config.json is read only for a job beyond such a minimum.
"""

from pydantic import ValidationError

from backend.jobs.models import Job, JobState
from backend.jobs.submitting.fitting import shapes_of
from engine.fit.durations.limits import longest_pause_s, longest_start_s
from engine.spec.job import JobSpec


def size_extra_s(job: Job) -> float:
    if job.pool.device_gb is None:  # a CPU, whose speed is unknown
        return 0.0
    try:
        spec = JobSpec.accepted(job.spec)
    except ValidationError:  # a spec of another release
        return 0.0
    shapes = shapes_of(spec, job.team)
    if shapes.model is None or not shapes.are_known:
        return 0.0
    longest_s = longest_pause_s if job.state == JobState.PAUSING else longest_start_s
    return longest_s(spec, shapes.model, teacher=shapes.teacher)
