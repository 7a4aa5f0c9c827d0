"""The registry: names for checkpoints worth keeping, with where each came from.

Invariants:
- a version's lineage is copied at promotion from what was recorded when the checkpoint was made, never from a request;
- promoting pins, and the same checkpoint under the same name is one version, however often it is asked for;
- versions of a model count up without a gap made by a race: the model's row is locked meanwhile.
"""

import hashlib
import json
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Max

from backend.audit.services import record_action
from backend.checkpoints.models import Checkpoint, ModelVersion, RegisteredModel
from backend.checkpoints.services import lock_for_use
from backend.jobs.models import Job


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
        last = ModelVersion.objects.filter(model=model).aggregate(last=Max("number"))["last"] or 0
        version = ModelVersion.objects.create(
            model=model,
            number=last + 1,
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
    """Of the canonical JSON: sorted names, no blanks."""
    return hashlib.sha256(json.dumps(job.spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
