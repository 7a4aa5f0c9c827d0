"""REST: jobs. Shape in, call, shape out; the services decide."""

from typing import Annotated

from django.db import transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status
from pydantic import Field

from backend.accounts.keys.bearer import MAY_READ, MAY_WRITE, caller_of
from backend.accounts.keys.project_limits import refuse_other_project
from backend.api.etags import IfMatch, etag_of, refuse_if_changed, tagged
from backend.api.idempotency import Key
from backend.api.limits.rate_limit import counted_at
from backend.api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, page_after
from backend.api.problems import problems
from backend.borders.types import Id, Moment, PathId
from backend.clock import database_now
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.control.changing import change_job
from backend.jobs.lifecycle import locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import outlook, waiting_message
from backend.jobs.rest.new_job import COUNTED_SUBMISSION, answer_with_new_job
from backend.jobs.rest.representations import (
    AttemptOut,
    EstimateOut,
    FitOut,
    HintOut,
    JobOut,
    PresetOut,
    PreviewOut,
    represent_attempt,
    represent_job,
)
from backend.jobs.selectors import attempts_of, jobs_visible_to, the_job
from backend.jobs.submitting.costs import cost_of
from backend.jobs.submitting.destination import destination_of, the_only_pool
from backend.jobs.submitting.refusals import SpecRefused
from backend.jobs.submitting.resolving import resolve_spec
from backend.jobs.submitting.submit import Submitter, check_submission, submit_job
from backend.pools.selectors import pools_of
from engine.spec.job import JobSpec, Name, Tag
from engine.spec.settings.hints import hints_of
from engine.spec.strict import Strict, Text

router = Router(tags=["Jobs"])
TagAsked = Annotated[Text, Field(max_length=40)]


class SubmitJob(Strict):
    project: Annotated[Id, Field(description="Project ID.")]
    spec: JobSpec
    pool: Annotated[Text, Field(min_length=1, max_length=80)] | None = Field(
        None, description="Name of the pool. Optional if the team has one pool."
    )
    start_from: Id | None = Field(
        None, description="One of your team's checkpoints to resume from: its weights, step and position in the data."
    )


class ChangeJob(Strict):
    """Changes to a job. Fields left out stay as they are."""

    name: Name | None = None
    tags: list[Tag] | None = Field(None, max_length=20)
    priority: int | None = Field(None, ge=-100, le=100)
    max_runtime_s: int | None = Field(None, ge=10, le=30 * 86_400)


class PreviewJob(Strict):
    spec: JobSpec
    pool: Annotated[Text, Field(min_length=1, max_length=80)] | None = None


@router.post(
    "/jobs",
    auth=MAY_WRITE,
    throttle=COUNTED_SUBMISSION,
    response={202: JobOut} | problems(400, 404, 409, 413, 415, 422, 429),
    summary="Submit a job",
)
def submit(
    request: HttpRequest,
    body: SubmitJob,
    idempotency_key: Key = None,
) -> HttpResponse:
    """The job waits in its pool's queue until its devices are free. With an Idempotency-Key, the same request can be
    sent again without submitting twice; the response then has `Idempotency-Replayed: true`."""
    caller, now = caller_of(request), counted_at(request)

    def make() -> Job:
        refuse_other_project(caller.key, body.project)  # before any query that reveals whether the project exists
        destination = destination_of(caller.team, project_id=body.project, pool_name=body.pool)
        return submit_job(
            by=Submitter(user=caller.user, key=caller.key),
            team=caller.team,
            project=destination.project,
            spec=body.spec,
            pool=destination.pool,
            now=now,
            start_from=body.start_from or "",
            quotas=destination.quotas,
        )

    return answer_with_new_job(request, make, key=idempotency_key, spec_at="/spec", now=now)


@router.post(
    "/jobs:preview", auth=MAY_READ, response={200: PreviewOut} | problems(400, 413, 415, 422), summary="Preview a job"
)
def preview(request: HttpRequest, body: PreviewJob) -> PreviewOut:
    """Submits nothing. Returns the spec with all presets and defaults filled in, the reasons of the presets, whether
    the job would start at once, and whether it fits the pool's devices."""
    caller, now = caller_of(request), database_now()
    pool = the_only_pool(list(pools_of(caller.team)), body.pool)
    resolved = resolve_spec(body.spec, team=caller.team, project=caller.key.project_id, pool=pool)
    try:
        check_submission(resolved)
    except SpecRefused as refusal:
        raise refusal.under("/spec") from None
    spec, fit = resolved.spec, resolved.fit
    cost = cost_of(spec, pool, now=now)
    reason = outlook(spec, team_id=caller.team.pk, pool=pool, now=now)
    return PreviewOut(
        spec=spec.model_dump(mode="json"),
        presets=[PresetOut(path=each.path, value=each.value, reason=each.reason) for each in resolved.presets],
        hints=[HintOut(path=each.path, message=each.message) for each in hints_of(spec)],
        pool=pool.name,
        devices=spec.num_devices,
        trajectories_per_step=spec.trajectories_per_step,
        starts_at_once=reason is None,
        reason=reason or "",
        message="" if reason is None else waiting_message(reason, devices=spec.num_devices, pool=pool),
        fit=None
        if fit is None
        else FitOut(fits=fit.misfit is None, message=fit.sentence, arithmetic=list(fit.arithmetic)),
        cost=None
        if cost is None
        else EstimateOut(
            currency=cost.currency,
            an_hour=f"{cost.an_hour.normalize():f}",
            an_hour_at_least=f"{cost.an_hour_at_least.normalize():f}",
            at_most=f"{cost.at_most.normalize():f}",
        ),
    )


@router.get("/jobs", auth=MAY_READ, response={200: Page[JobOut]} | problems(422), summary="List jobs")
def list_jobs(
    request: HttpRequest,
    state: Annotated[list[JobState], Query()] = [],  # noqa: B006  # ninja needs a list; it is never changed
    project: Annotated[Id | None, Query()] = None,
    tag: Annotated[list[TagAsked], Query(max_length=20, description="Jobs with all of these tags.")] = [],  # noqa: B006
    q: Annotated[Text | None, Query(max_length=120, description="Part of the name, or the start of an ID.")] = None,
    created_by: Annotated[Text | None, Query(max_length=254, description="An email address.")] = None,
    since: Annotated[Moment | None, Query(description="Submitted at or after this time, RFC 3339.")] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[JobOut]:
    """Newest first. `state` may be given more than once."""
    jobs = jobs_visible_to(caller_of(request).team)
    if state:
        jobs = jobs.filter(state__in=state)
    if project is not None:
        jobs = jobs.filter(project_id=project)
    if tag:
        jobs = jobs.filter(tags__contains=tag)
    if q is not None:
        jobs = jobs.filter(Q(name__icontains=q) | Q(pk__startswith=q))
    if created_by is not None:
        jobs = jobs.filter(created_by__email__iexact=created_by)
    if since is not None:
        jobs = jobs.filter(created_at__gte=since)
    page, next_cursor = page_after(jobs, cursor=cursor, limit=limit)
    return Page(data=[represent_job(job) for job in page], has_more=next_cursor is not None, next_cursor=next_cursor)


@router.get("/jobs/{job_id}", auth=MAY_READ, response={200: JobOut} | problems(404), summary="Get a job")
def show(request: HttpRequest, response: HttpResponse, job_id: PathId) -> JobOut:
    """The ETag changes whenever the job's state or settings change. Send it as If-Match to change the job."""
    job = the_job(caller_of(request).team, job_id)
    tagged(response, etag_of(job.version))
    return represent_job(job)


@router.patch(
    "/jobs/{job_id}",
    auth=MAY_WRITE,
    response={200: JobOut} | problems(400, 404, 409, 412, 413, 415, 422),
    summary="Change name, tags, priority or runtime",
)
def change(
    request: HttpRequest, response: HttpResponse, job_id: PathId, body: ChangeJob, if_match: IfMatch = None
) -> JobOut:
    """Name and tags until the job finishes; priority and max_runtime_s while it waits. The spec never changes. Send
    the ETag that you read as If-Match to avoid overwriting another change."""
    caller, now = caller_of(request), database_now()
    job = the_job(caller.team, job_id)
    changes = {name: value for name, value in body.model_dump(exclude_unset=True).items() if value is not None}
    with transaction.atomic():
        refuse_if_changed(if_match, etag_of(locked_job(job.pk).version))
        change_job(job.pk, changes, actor=caller.actor, now=now)
    job = the_job(caller.team, job_id)
    tagged(response, etag_of(job.version))
    return represent_job(job)


@router.post(
    "/jobs/{job_id}/cancel",
    auth=MAY_WRITE,
    response={202: JobOut, 200: JobOut} | problems(404, 409),
    summary="Cancel a job",
)
def cancel(request: HttpRequest, job_id: PathId) -> Status[JobOut]:
    """202: the job is cancelled, or its engine received the request. 200: it is already stopping or cancelled.
    409 `invalid_state`: it has succeeded or failed."""
    caller = caller_of(request)
    job = the_job(caller.team, job_id)
    _, changed = cancel_job(job.pk, actor=caller.actor, now=database_now())
    return Status(202 if changed else 200, represent_job(the_job(caller.team, job_id)))


@router.get(
    "/jobs/{job_id}/attempts", auth=MAY_READ, response={200: Page[AttemptOut]} | problems(404), summary="List attempts"
)
def attempts(request: HttpRequest, job_id: PathId) -> Page[AttemptOut]:
    """Oldest first."""
    return Page(data=[represent_attempt(row) for row in attempts_of(the_job(caller_of(request).team, job_id))])
