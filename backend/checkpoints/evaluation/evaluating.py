"""Evaluating a checkpoint: a separate job without training, and its result.

Invariants:
- such a job is submitted, queued, billed and shown like any other, but holds the devices of its replicas only;
- by default it repeats the evaluation of the checkpoint's own job: the same held-out prompts, drawn with the same seed
  and sampled in the same way, so that results are comparable;
- one result is recorded per evaluation job, that of its last attempt.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from pydantic import ValidationError

from backend.audit.services import record_action
from backend.checkpoints.models import Checkpoint, CheckpointEvaluation
from backend.checkpoints.services import refuse_unless_whole
from backend.errors import field_errors
from backend.jobs.models import Job
from backend.jobs.submitting.refusals import SpecRefused
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import ResourcePool
from engine.spec.facts import Evaluated
from engine.spec.job import EnvironmentSpec, JobSpec

LONGEST_NAME: Final = 120
# Fields that only training needs keep their defaults: the checkpoint's weights are merged and complete.
_KEPT: Final = ("schema_version", "model", "environment", "evaluation", "rollout", "placement", "max_runtime_s")
_WISHED: Final = ("prompts", "samples", "temperature", "top_p")
_OF_DRAWN: Final = ("samples", "top_p", "top_k", "min_p")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationWishes:
    """Settings of an evaluation. None: as the checkpoint's job had it."""

    name: str | None = None
    prompts: int | None = None
    samples: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    environment: EnvironmentSpec | None = None
    replicas: int = 1
    max_runtime_s: int | None = None


def evaluation_spec(checkpoint: Checkpoint, wishes: EvaluationWishes) -> JobSpec:
    """Raises `SpecRefused`."""
    own: Mapping[str, Any] = checkpoint.job.spec
    changed: dict[str, Any] = {name: own[name] for name in _KEPT} | {
        "name": wishes.name or f"Evaluate step {checkpoint.step} of {checkpoint.job.name}"[:LONGEST_NAME],
        "tags": ["evaluation"],
        "training": {"steps": 0, "seed": own["training"]["seed"]},
        "evaluation": _build_evaluation(own["evaluation"], wishes),
        "rollout": own["rollout"] | {"replicas": wishes.replicas},
        "resources": {"trainer_devices": 0, "devices_per_replica": own["resources"]["devices_per_replica"]},
        "placement": own["placement"] | {"min_replicas": None},
    }
    if wishes.environment is not None:
        changed["environment"] = wishes.environment.model_dump(mode="json")
    if wishes.max_runtime_s is not None:
        changed["max_runtime_s"] = wishes.max_runtime_s
    try:
        return JobSpec.model_validate(changed)
    except ValidationError as failure:  # the checkpoint's job was accepted by another release
        raise SpecRefused("The evaluation's spec is invalid.",
                          errors=field_errors(failure, changed)) from None  # fmt: skip


def _build_evaluation(own: Mapping[str, Any], wishes: EvaluationWishes) -> dict[str, Any]:
    """The evaluation of the checkpoint's job, with the requested changes. Greedy evaluation drops its sampling
    settings, since greedy samples of a prompt are equal."""
    requested = {name: value for name in _WISHED if (value := getattr(wishes, name)) is not None}
    kept = {name: value for name, value in own.items() if wishes.temperature != 0 or name not in _OF_DRAWN}
    return kept | {"every": 0} | requested


def evaluate_checkpoint(
    checkpoint: Checkpoint, spec: JobSpec, *, pool: ResourcePool, by: Submitter, now: datetime
) -> Job:
    """Raises what `submit_job` raises, and for an unusable checkpoint what `refuse_unless_whole` raises."""
    origin = checkpoint.job
    with transaction.atomic():
        if not Checkpoint.objects.usable().filter(pk=checkpoint.pk).exists():
            checkpoint.refresh_from_db(fields=["state"])
            refuse_unless_whole(checkpoint)
        job = submit_job(
            by=by,
            team=origin.team,
            project=origin.project,
            spec=spec,
            pool=pool,
            now=now,
            start_from=checkpoint.pk,
        )
        data = {"job": job.pk, "prompts": spec.evaluation.prompts, "environment": spec.environment.name}
        record_action(
            team_id=origin.team_id,
            actor=by.actor,
            action="checkpoint.evaluated",
            target=checkpoint.pk,
            now=now,
            data=data,
        )
    return job


def record_evaluation(job: Job, evaluated: Evaluated, *, now: datetime) -> None:
    """Called in the fact's transaction, with the job locked."""
    if job.steps or not job.start_from:
        return  # a training job's own evaluations are in its series
    if not Checkpoint.objects.filter(pk=job.start_from).exists():
        return
    result = evaluated.model_dump(exclude={"type", "version"})
    kept = result | {"checkpoint_id": job.start_from, "at": now, "environment": job.spec["environment"]["name"]}
    CheckpointEvaluation.objects.update_or_create(job=job, defaults=kept)
