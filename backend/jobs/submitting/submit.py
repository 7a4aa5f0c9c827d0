"""Submission: the only way into a pool's queue, for every kind of caller.

Invariants:
- the limits of a key (its project, its ceilings) are enforced here, so no caller can forget them;
- a ceiling stays locked until the job exists, so of two jobs that fit only one at a time, one is refused;
- a job's first event names the user or key that submitted it: the use of a key is computed from that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from backend.accounts.keys.project_limits import refuse_other_project
from backend.accounts.models import ApiKey, Project, Team, User
from backend.errors import FieldError, NotFound
from backend.jobs.attempts.asset_catalog import asset_catalog
from backend.jobs.attempts.resume_points import ResumePoint, checkpoint_of_team
from backend.jobs.lifecycle import insert_job
from backend.jobs.models import Job, JobState
from backend.jobs.submitting.key_use import refuse_checkpoint_beyond_project, refuse_spec_over_ceiling
from backend.jobs.submitting.refusals import refuse_spec, refuse_start, refuse_unknown_names
from backend.jobs.submitting.resolving import ResolvedSpec, resolve_spec
from backend.jobs.submitting.validation import needs_validation
from backend.pools.decision.decide import WaitingReason
from backend.pools.models import ResourcePool, TeamQuota
from engine.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """The owner of a new job, and the API key used; None for a browser session."""

    user: User
    key: ApiKey | None

    @property
    def actor(self) -> str:
        return f"key:{self.key.pk}" if self.key else f"user:{self.user.pk}"


def check_submission(resolved: ResolvedSpec, *, start_from: str = "") -> ResumePoint | None:
    """Runs every check of a submission without creating anything. Raises `SpecRefused`, `NotFound`."""
    refuse_unknown_names(resolved)
    refuse_spec(resolved)
    return _find_start(resolved.team, resolved.spec, start_from)


def submit_job(
    *,
    by: Submitter,
    team: Team,
    project: Project,
    spec: JobSpec,
    pool: ResourcePool,
    now: datetime,
    start_from: str = "",
    parent: Job | None = None,
    data: Mapping[str, Any] | None = None,
    quotas: Sequence[TeamQuota] | None = None,
) -> Job:
    """Creates a job in the pool's queue; the scheduler is notified when this transaction commits. Presets of the model
    fill in what the spec leaves out.

    `start_from` is the id of one of the team's checkpoints; `quotas` are the pool's, if already read. Raises
    `SpecRefused`, `NotFound`, `Denied`, `CeilingReached`.
    """
    if by.key is not None:
        refuse_other_project(by.key, project.pk)
        refuse_checkpoint_beyond_project(by.key, start_from)
    assert project.team_id == team.pk, "the project belongs to the team"
    resolved = resolve_spec(spec, team=team, project=project.pk, pool=pool, quotas=quotas)
    start = check_submission(resolved, start_from=start_from)
    spec, assets = resolved.spec, resolved.pinned_assets
    state = JobState.VALIDATING if needs_validation(spec, start_from=start_from) else JobState.QUEUED
    is_queued = state == JobState.QUEUED
    job = Job(
        team=team,
        project=project,
        pool=pool,
        created_by=by.user,
        name=spec.name,
        tags=spec.tags,
        spec=spec.model_dump(mode="json"),
        devices=spec.num_devices,
        min_devices=spec.min_devices,
        priority=spec.placement.priority,
        preemptible=spec.placement.preemptible,
        max_runtime_s=spec.max_runtime_s,
        steps=spec.training.steps,
        step=start.step if start else 0,
        start_from=start_from,
        parent=parent,
        state=state,
        reason=WaitingReason.NOT_EVALUATED_YET if is_queued else "",
        message="Waiting for the scheduler." if is_queued else "Validating the job.",
        created_at=now,
        queued_at=now if is_queued else None,
    )
    about = {"devices": spec.num_devices, "start_from": start_from, "parent": parent.pk if parent else ""}
    details = {key: value for key, value in about.items() if value}
    with transaction.atomic(savepoint=False):  # a failure aborts the caller's transaction as well
        if by.key is not None:
            refuse_spec_over_ceiling(by.key, spec, now=now)
        insert_job(job, actor=by.actor, now=now, data={**details, **(data or {})})
        if assets:
            asset_catalog().keep(job, assets)
    return job


def _find_start(team: Team, spec: JobSpec, start_from: str) -> ResumePoint | None:
    if not start_from:
        return None
    point = checkpoint_of_team(team, start_from)
    if point is None:
        error = FieldError(pointer="/start_from", code="not_found", message="your team has no checkpoint with this id")
        raise NotFound("Checkpoint not found.", errors=[error])
    refuse_start(spec, point)
    return point
