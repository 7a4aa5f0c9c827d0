"""Rules that apply to every job: checked at submission, and again before it is queued."""

from backend.errors import FieldError, Invalid
from backend.jobs.attempts.resume_points import ResumePoint
from backend.jobs.submitting.resolving import ResolvedSpec
from engine.fit.shards import why_not_shardable
from engine.spec.job import JobSpec


class SpecRefused(Invalid):
    """The spec cannot be accepted: the job could never start, or it uses something that the team does not own."""


def refuse_unknown_names(resolved: ResolvedSpec) -> None:
    """Raises `SpecRefused` with every unknown name."""
    if resolved.unknown:
        first = resolved.unknown[0]
        raise SpecRefused(first.message, code=first.code, errors=resolved.unknown)


def refuse_spec(resolved: ResolvedSpec) -> None:
    """Raises `SpecRefused`."""
    spec, pool = resolved.spec, resolved.pool
    for which, pointer, is_name in (
        ("model", "/model/source", spec.model.is_name),
        ("teacher", "/algorithm/teacher/source", spec.algorithm.teacher.is_name),
    ):
        if not is_name:  # a path could lead to another team's model
            message = "must be a name of letters, digits, dots, dashes and underscores, such as demo or NAME@2"
            raise refused(f"The {which} {message}.", pointer=pointer, code="model_unknown", message=message)
    limits = (
        (pool.capacity, f"pool {pool.name} has"),
        (resolved.max_devices, f"your team's limit in pool {pool.name} is"),
    )
    limit, limiter = min(limits)
    if spec.min_devices > limit:
        pointer = "/rollout/replicas" if spec.trainer_devices <= limit else "/resources/trainer_devices"
        message = f"this job needs {spec.min_devices} devices; {limiter} {limit}"
        raise refused(f"This job could never start: {message}.", pointer=pointer, code="exceeds_max", message=message)
    _refuse_sharding(resolved)
    fit = resolved.fit
    if fit is not None and fit.is_refused:
        error = FieldError(pointer=fit.pointer, code="does_not_fit", message=fit.sentence)
        raise SpecRefused(fit.sentence, code="does_not_fit", errors=[error], arithmetic=list(fit.arithmetic))


def _refuse_sharding(resolved: ResolvedSpec) -> None:
    """Refuses a model that cannot be split over a replica's devices, if its config.json was read here."""
    shapes, num_devices = resolved.shapes, resolved.spec.resources.devices_per_replica
    if num_devices == 1 or shapes.model is None or not shapes.are_read:
        return
    message = why_not_shardable(shapes.model, num_devices)
    if message is not None:
        pointer = "/resources/devices_per_replica"
        raise refused(f"{message}.", pointer=pointer, code="does_not_fit", message=message)


def refuse_start(spec: JobSpec, point: ResumePoint) -> None:
    """Checks a job that is to resume from another job's checkpoint. Raises `SpecRefused`."""
    before = JobSpec.accepted(point.origin.spec)
    if spec.training.steps <= point.step and not spec.only_evaluates:
        message = f"must be more than {point.step}, the step of the checkpoint, or 0 to evaluate it"
        raise refused(f"training.steps {message}.", pointer="/training/steps", code="nothing_left", message=message)
    same: list[tuple[str, object, object]] = []
    if not _is_same_model(spec.model.source, before.model.source):
        same.append(("/model/source", spec.model.source, before.model.source))
    if not spec.only_evaluates:  # an evaluation reads the merged weights of any trainer
        same.append(("/trainer/lora_rank", spec.trainer.lora_rank, before.trainer.lora_rank))
        same.append(("/trainer/backend", spec.trainer.backend, before.trainer.backend))
    for pointer, mine, its in same:
        if mine != its:
            message = f"must be {its}, as in the job that wrote the checkpoint; got {mine}"
            path = pointer[1:].replace("/", ".")
            raise refused(f"{path} {message}.", pointer=pointer, code="other_weights", message=message)


def _is_same_model(mine: str, its: str) -> bool:
    """`its`: the spec of a job that may predate versions in specs."""
    return mine == its or ("@" not in its and mine.partition("@")[0] == its)


def refused(detail: str, *, pointer: str, code: str, message: str) -> SpecRefused:
    return SpecRefused(detail, code=code, errors=[FieldError(pointer=pointer, code=code, message=message)])
