"""Checkpoints and models, as somebody may see them.

Invariants:
- a thing of another team is answered exactly like one that does not exist;
- where a job goes on is said in one place: `Checkpoint.objects.usable()`.
"""

import re
from collections.abc import Sequence

from django.db.models import Exists, OuterRef, QuerySet

from backend.accounts.models import Team
from backend.borders.types import is_id
from backend.checkpoints.models import GONE, Checkpoint, ModelVersion, RegisteredModel, Retention
from backend.errors import NotFound
from backend.jobs.models import TERMINAL_STATES, Job, JobAttempt

_CHECKPOINT_ID = re.compile(r"ckpt_[0-9a-z]{20}", re.ASCII)


def checkpoints_of(job: Job) -> QuerySet[Checkpoint]:
    """Newest first, without those that are gone."""
    found = Checkpoint.objects.filter(job=job).exclude(state__in=GONE)
    return found.prefetch_related("evaluations").order_by("-attempt", "-step")


def newest_checkpoint(job: Job) -> Checkpoint | None:
    """The one from which the job's next attempt goes on."""
    return Checkpoint.objects.filter(job=job).usable().first()


def checkpoints_visible_to(team: Team) -> QuerySet[Checkpoint]:
    """Newest first."""
    found = Checkpoint.objects.filter(job__team=team).select_related("job__pool").prefetch_related("evaluations")
    return found.order_by("-created_at", "-id")


def the_checkpoint(team: Team, checkpoint_id: str) -> Checkpoint:
    """Raises `NotFound`."""
    found = None
    if _CHECKPOINT_ID.fullmatch(checkpoint_id):
        found = checkpoints_visible_to(team).filter(pk=checkpoint_id).first()
    if found is None:
        raise NotFound("There is no checkpoint with this id.")
    return found


def retention_of(job: Job) -> Retention:
    return Retention.objects.filter(job=job).first() or Retention(job=job)


def checkpoints_in_use(checkpoint_ids: Sequence[str]) -> dict[str, str]:
    """Of these, those that a job needs: it began from it and is not over, or its live attempt went on from it."""
    starting = Job.objects.filter(start_from__in=checkpoint_ids).exclude(state__in=TERMINAL_STATES)
    used = dict(starting.values_list("start_from", "id"))
    resumed = JobAttempt.objects.filter(job=OuterRef("job"), ended_at__isnull=True, resume_from=OuterRef("uri"))
    found = Checkpoint.objects.filter(Exists(resumed), pk__in=checkpoint_ids)
    return {**dict(found.values_list("id", "job_id")), **used}


def models_of(team: Team) -> QuerySet[RegisteredModel]:
    """Newest first."""
    return RegisteredModel.objects.filter(team=team, removed_at__isnull=True).order_by("-created_at", "-id")


def the_model(team: Team, name: str) -> RegisteredModel:
    """Raises `NotFound`."""
    found = models_of(team).filter(name=name).first() if is_id(name) else None
    if found is None:
        raise NotFound("There is no model with this name.")
    return found


def the_version(model: RegisteredModel, number: int) -> ModelVersion:
    """Raises `NotFound`."""
    found = versions_of(model).filter(number=number).first()
    if found is None:
        raise NotFound("This model has no such version.")
    return found


def versions_of(model: RegisteredModel) -> QuerySet[ModelVersion]:
    """Newest first."""
    return ModelVersion.objects.filter(model=model).select_related("checkpoint").order_by("-number")
