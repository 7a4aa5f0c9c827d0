"""What no job may ask for, whoever submits it: checked when it is submitted and once more before it waits."""

from backend.accounts.models import Team
from backend.errors import FieldError, Invalid
from backend.jobs.models import Job
from backend.jobs.resume_points import ResumePoint
from backend.pools.models import ResourcePool
from backend.pools.selectors import most_of
from engine.spec.job import JobSpec


class SpecRefused(Invalid):
    """The spec is well formed, and still no job: it could never start, or asks for what is not the team's.

    The pointers lead into the spec.
    """


def refuse_spec(spec: JobSpec, team: Team, pool: ResourcePool) -> None:
    """Raises `SpecRefused`."""
    if not spec.model.is_name:  # a path could lead to another team's
        message = "must be a name of letters, digits, dots, dashes and underscores, such as demo"
        raise refused(f"The model {message}.", pointer="/model/source", code="model_unknown", message=message)
    most = most_of(team, pool, preemptible=spec.placement.preemptible)
    limit, whose = min((pool.capacity, f"pool {pool.name} has"), (most, f"your team may use in pool {pool.name}"))
    if spec.min_devices > limit:
        pointer = "/rollout/replicas" if spec.resources.trainer_devices <= limit else "/resources/trainer_devices"
        message = f"this job needs {spec.min_devices} devices; {limit} is all that {whose}"
        raise refused(f"This job could never start: {message}.", pointer=pointer, code="exceeds_max", message=message)


def refuse_start(spec: JobSpec, point: ResumePoint, origin: Job) -> None:
    """Of a job that is to go on from another one's checkpoint. Raises `SpecRefused`."""
    before = JobSpec.model_validate(origin.spec)
    if spec.training.steps <= point.step:
        message = f"must be more than {point.step}, the step of the checkpoint"
        raise refused(f"training.steps {message}.", pointer="/training/steps", code="nothing_left", message=message)
    for pointer, mine, its in (
        ("/model/source", spec.model.source, before.model.source),
        ("/trainer/lora_rank", spec.trainer.lora_rank, before.trainer.lora_rank),
        ("/trainer/backend", spec.trainer.backend, before.trainer.backend),
    ):
        if mine != its:
            message = f"must be {its!r} as in the job that wrote the checkpoint, not {mine!r}"
            raise refused(f"{pointer[1:]} {message}.", pointer=pointer, code="other_weights", message=message)


def refused(detail: str, *, pointer: str, code: str, message: str) -> SpecRefused:
    return SpecRefused(detail, code=code, errors=[FieldError(pointer=pointer, code=code, message=message)])
