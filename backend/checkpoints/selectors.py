"""Checkpoints and models, as a caller may see them.

Invariants:
- another team's row is treated like a missing one;
- the resume point of a job is defined in one place: `Checkpoint.objects.usable()`.
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
    """Newest first, without deleted ones."""
    rows = Checkpoint.objects.filter(job=job).exclude(state__in=GONE)
    return rows.prefetch_related("evaluations").order_by("-attempt", "-step")


def newest_checkpoint(job: Job) -> Checkpoint | None:
    """The checkpoint from which the job's next attempt resumes."""
    return Checkpoint.objects.filter(job=job).usable().first()


def checkpoints_visible_to(team: Team) -> QuerySet[Checkpoint]:
    """Newest first."""
    rows = Checkpoint.objects.filter(job__team=team).select_related("job__pool").prefetch_related("evaluations")
    return rows.order_by("-created_at", "-id")


def the_checkpoint(team: Team, checkpoint_id: str) -> Checkpoint:
    """Raises `NotFound`."""
    checkpoint = None
    if _CHECKPOINT_ID.fullmatch(checkpoint_id):
        checkpoint = checkpoints_visible_to(team).filter(pk=checkpoint_id).first()
    if checkpoint is None:
        raise NotFound("Checkpoint not found.")
    return checkpoint


def retention_of(job: Job) -> Retention:
    return Retention.objects.filter(job=job).first() or Retention(job=job)


def checkpoints_in_use(checkpoint_ids: Sequence[str]) -> dict[str, str]:
    """Those of these that a job needs: an unended job started from it, or a live attempt resumed from it."""
    starting = Job.objects.filter(start_from__in=checkpoint_ids).exclude(state__in=TERMINAL_STATES)
    used = dict(starting.values_list("start_from", "id"))
    resumed = JobAttempt.objects.filter(job=OuterRef("job"), ended_at__isnull=True, resume_from=OuterRef("uri"))
    rows = Checkpoint.objects.filter(Exists(resumed), pk__in=checkpoint_ids)
    return {**dict(rows.values_list("id", "job_id")), **used}


def models_of(team: Team) -> QuerySet[RegisteredModel]:
    """Newest first."""
    return RegisteredModel.objects.filter(team=team, removed_at__isnull=True).order_by("-created_at", "-id")


def the_model(team: Team, name: str) -> RegisteredModel:
    """Raises `NotFound`."""
    model = models_of(team).filter(name=name).first() if is_id(name) else None
    if model is None:
        raise NotFound("Model not found.")
    return model


def the_version(model: RegisteredModel, number: int) -> ModelVersion:
    """Raises `NotFound`."""
    version = versions_of(model).filter(number=number).first()
    if version is None:
        raise NotFound("Model version not found.")
    return version


def versions_of(model: RegisteredModel) -> QuerySet[ModelVersion]:
    """Newest first."""
    return ModelVersion.objects.filter(model=model).select_related("checkpoint").order_by("-number")
