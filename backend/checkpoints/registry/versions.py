"""The model registry: names for checkpoints worth keeping, each with its origin.

Invariants:
- a version's lineage is copied at promotion from what was recorded with the checkpoint, never from a request;
- promoting pins, and is idempotent: a checkpoint has one version per model;
- versions of a model are numbered without gaps from races: the model's row is locked meanwhile;
- the number of a removed version is never reused; its checkpoint stays, pinned until it is unpinned: removing a name
  deletes no bytes.
"""

import hashlib
import json
from datetime import datetime
from typing import Any

from django.db import transaction

from backend.accounts.models import Team
from backend.audit.services import record_action
from backend.checkpoints.models import Checkpoint, ModelVersion, RegisteredModel
from backend.checkpoints.registry.uploads import uploads_of
from backend.checkpoints.services import lock_for_use
from backend.errors import Conflict, NotFound
from backend.jobs.models import Job


class HasVersions(Conflict):
    """This model has versions. Remove them first."""

    code = "has_versions"


def promote(checkpoint_id: str, *, name: str, note: str, actor: str, now: datetime) -> tuple[ModelVersion, bool]:
    """The version, and whether it is new. Raises what `lock_for_use` raises."""
    with transaction.atomic():
        checkpoint = lock_for_use(checkpoint_id)
        job = checkpoint.job
        RegisteredModel.objects.get_or_create(team_id=job.team_id, name=name, defaults={"created_at": now})
        model = RegisteredModel.objects.select_for_update(no_key=True).get(team_id=job.team_id, name=name)
        existing = ModelVersion.objects.filter(model=model, checkpoint=checkpoint).first()
        if existing is not None:
            return existing, False
        model.last_number, model.removed_at = model.last_number + 1, None
        _save(model)
        version = ModelVersion.objects.create(
            model=model,
            number=model.last_number,
            checkpoint=checkpoint,
            note=note,
            created_at=now,
            created_by=actor,
            lineage=lineage_of(checkpoint),
        )
        Checkpoint.objects.filter(pk=checkpoint.pk).update(pinned=True)
        data = {"model": name, "version": version.number, "job": job.pk, "step": checkpoint.step}
        record_action(
            team_id=job.team_id, actor=actor, action="checkpoint.promoted", target=checkpoint.pk, now=now, data=data
        )
    return version, True


def number_for_upload(team: Team, name: str, *, now: datetime) -> int:
    """The next number for an uploaded model of this name: uploads and trained versions share one sequence."""
    with transaction.atomic():
        RegisteredModel.objects.get_or_create(team=team, name=name, defaults={"created_at": now})
        model = RegisteredModel.objects.select_for_update(no_key=True).get(team=team, name=name)
        model.last_number, model.removed_at = model.last_number + 1, None
        _save(model)
    return model.last_number


def change_note(version: ModelVersion, note: str, *, actor: str, now: datetime) -> ModelVersion:
    """For a locked version."""
    if version.note != note:
        data = {"version": version.number, "before": version.note, "after": note}
        version.note, version.revision = note, version.revision + 1
        version.save(update_fields=["note", "revision"])
        _record(version.model, "model.version_changed", actor=actor, now=now, data=data)
    return version


def remove_version(version: ModelVersion, *, actor: str, now: datetime) -> None:
    """For a locked version."""
    model = locked_model(version.model)
    data = {"version": version.number, "checkpoint": version.checkpoint_id, "note": version.note}
    version.delete()
    _save(model)
    _record(model, "model.version_removed", actor=actor, now=now, data=data | {"lineage": version.lineage})


def remove_model(model: RegisteredModel, *, actor: str, now: datetime) -> None:
    """For a locked model. Its row stays, so a later model of the name continues the count. Raises `HasVersions`."""
    if model.versions.exists() or uploads_of()(model):
        raise HasVersions()
    model.removed_at = now
    _save(model)
    _record(model, "model.removed", actor=actor, now=now, data={"last_version": model.last_number})


def locked_model(model: RegisteredModel) -> RegisteredModel:
    """Raises `NotFound` if it was removed meanwhile."""
    row = RegisteredModel.objects.select_for_update(no_key=True).filter(pk=model.pk, removed_at__isnull=True).first()
    if row is None:
        raise NotFound("Model not found.")
    return row


def locked_version(version: ModelVersion) -> ModelVersion:
    """Raises `NotFound` if it was removed meanwhile."""
    rows = ModelVersion.objects.select_related("model").select_for_update(of=("self",))
    row = rows.filter(pk=version.pk).first()
    if row is None:
        raise NotFound("Model version not found.")
    return row


def _save(model: RegisteredModel) -> None:
    model.revision += 1
    model.save(update_fields=["last_number", "removed_at", "revision"])


def _record(model: RegisteredModel, action: str, *, actor: str, now: datetime, data: dict[str, Any]) -> None:
    details = {"model": model.name, **data}
    record_action(team_id=model.team_id, actor=actor, action=action, target=model.pk, now=now, data=details)


def lineage_of(checkpoint: Checkpoint) -> dict[str, Any]:
    job, spec = checkpoint.job, checkpoint.job.spec
    return {
        "job": job.pk,
        "attempt": checkpoint.attempt,
        "step": checkpoint.step,
        "checkpoint": checkpoint.pk,
        "manifest_sha256": checkpoint.manifest_sha256,
        "code_version": checkpoint.code_version,
        "spec_sha256": spec_sha256(job),
        "base_model": spec["model"]["source"],
        "algorithm": spec["algorithm"]["name"],
        "data": {
            "environment": spec["environment"]["name"],
            "params": spec["environment"]["params"],
            "code_sha256": hashlib.sha256(spec["environment"]["code"].encode()).hexdigest(),
            "seed": spec["training"]["seed"],
        },
        "began_from": job.start_from or None,
        "parent_job": job.parent_id,
        "metrics": checkpoint.metrics,
    }


def spec_sha256(job: Job) -> str:
    """Of the canonical JSON: sorted names, no spaces."""
    return hashlib.sha256(json.dumps(job.spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
