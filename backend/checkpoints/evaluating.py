"""Evaluating a checkpoint: a job of its own, which trains nothing, and its answer.

Invariants:
- such a job is a job like any other: it is submitted, waits, holds devices, is billed and is told of as they are; only
  that it holds its replicas' devices and no trainer's;
- unless told otherwise it asks what the checkpoint's own job asked: the same held-out prompts, drawn by the same seed,
  sampled in the same way, so that the two numbers can be laid side by side;
- an answer is recorded once for each job, the last attempt's, and only of a job that was made to evaluate.
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
# What only training needs is left at its defaults, whatever the checkpoint's job had: the weights are merged and whole.
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
        "evaluation": _evaluation(own["evaluation"], wishes),
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
    except ValidationError as failure:  # its job was taken in by another release
        raise SpecRefused("The evaluation's spec breaks a rule.",
                          errors=field_errors(failure, changed)) from None  # fmt: skip


def _evaluation(own: Mapping[str, Any], wishes: EvaluationWishes) -> dict[str, Any]:
    """What the checkpoint's job asked, changed as wished. Greedy answers are all the same: how its job drew several
    does not concern them."""
    wished = {name: value for name in _WISHED if (value := getattr(wishes, name)) is not None}
    kept = {name: value for name, value in own.items() if wishes.temperature != 0 or name not in _OF_DRAWN}
    return kept | {"every": 0} | wished


def evaluate_checkpoint(
    checkpoint: Checkpoint, spec: JobSpec, *, pool: ResourcePool, by: Submitter, now: datetime
) -> Job:
    """Raises what `submit_job` raises; of a checkpoint that no job may begin from, what `refuse_unless_whole` does."""
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


def record_evaluation(job: Job, told: Evaluated, *, now: datetime) -> None:
    """In the transaction of the fact, with the job locked."""
    if job.steps or not job.start_from:
        return  # a training job's own evaluations are in its series
    if not Checkpoint.objects.filter(pk=job.start_from).exists():
        return
    found = told.model_dump(exclude={"type", "version"})
    kept = found | {"checkpoint_id": job.start_from, "at": now, "environment": job.spec["environment"]["name"]}
    CheckpointEvaluation.objects.update_or_create(job=job, defaults=kept)
