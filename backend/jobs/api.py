"""REST: jobs. Shape in, call, shape out; the services decide."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status
from pydantic import Field

from backend.accounts.bearer import MAY_READ, MAY_WRITE, caller_of
from backend.accounts.models import Project, Team
from backend.accounts.selectors import projects_of
from backend.api.idempotency import Answer, Key, once
from backend.api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, page_after
from backend.api.problems import problems
from backend.api.rate_limit import SUBMITS, take
from backend.clock import database_now
from backend.errors import FieldError, Invalid, NotFound
from backend.jobs.models import JobState
from backend.jobs.representations import (
    AttemptOut,
    EventsOut,
    JobOut,
    PreviewOut,
    represent_attempt,
    represent_event,
    represent_job,
)
from backend.jobs.scheduling import outlook, waiting_message
from backend.jobs.selectors import attempts_of, events_after, jobs_visible_to, the_job
from backend.jobs.services import SpecRefused, cancel_job, refuse_spec, submit_job
from backend.pools.models import ResourcePool
from backend.pools.selectors import pools_of
from engine.spec.job import JobSpec
from engine.spec.strict import Strict, Text

router = Router(tags=["Jobs"])


class SubmitJob(Strict):
    project: Annotated[Text, Field(min_length=1, max_length=64, description="Its id.")]
    spec: JobSpec
    pool: Annotated[Text, Field(min_length=1, max_length=80)] | None = Field(
        None, description="Its name; may be left out if the team has one pool."
    )


class PreviewJob(Strict):
    spec: JobSpec
    pool: Annotated[Text, Field(min_length=1, max_length=80)] | None = None


@router.post(
    "/jobs", auth=MAY_WRITE, response={202: JobOut} | problems(400, 404, 409, 413, 415, 422, 429), summary="Submit"
)
def submit(
    request: HttpRequest,
    response: HttpResponse,
    body: SubmitJob,
    idempotency_key: Key = None,
) -> Status[dict[str, object]]:
    """The job waits in its pool's line until the devices that it needs are free. Send an Idempotency-Key, and the
    same request can be sent again without submitting twice; the answer then carries `Idempotency-Replayed: true`."""
    caller, now = caller_of(request), database_now()
    allowance = take(SUBMITS, caller=caller.key.pk)

    def effect() -> Answer:
        job = submit_job(
            team=caller.team,
            project=_project(caller.team, body.project),
            actor_user=caller.user,
            spec=body.spec,
            pool=_pool(caller.team, body.pool),
            actor=caller.actor,
            now=now,
        )
        shown = represent_job(job)
        return Answer(status=202, body=shown.model_dump(mode="json"), location=shown.links.self)

    try:
        answer, replayed = once(request, effect, team_id=caller.team.pk, key=idempotency_key, now=now)
    except SpecRefused as refusal:
        raise refusal.under("/spec") from None
    headers = allowance.headers | {"Location": answer.location}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    for name, value in headers.items():
        response[name] = value
    return Status(answer.status, answer.body)


@router.post(
    "/jobs:preview", auth=MAY_READ, response={200: PreviewOut} | problems(400, 413, 415, 422), summary="Try out a spec"
)
def preview(request: HttpRequest, body: PreviewJob) -> PreviewOut:
    """Nothing is submitted: the spec with all defaults filled in, and whether the job would start at once."""
    caller, now = caller_of(request), database_now()
    pool = _pool(caller.team, body.pool)
    try:
        refuse_spec(body.spec, caller.team, pool)
    except SpecRefused as refusal:
        raise refusal.under("/spec") from None
    reason = outlook(body.spec, team_id=caller.team.pk, pool=pool, now=now)
    return PreviewOut(
        spec=body.spec.model_dump(mode="json"),
        pool=pool.name,
        devices=body.spec.num_devices,
        trajectories_per_step=body.spec.trajectories_per_step,
        starts_at_once=reason is None,
        reason=reason or "",
        message="" if reason is None else waiting_message(reason, devices=body.spec.num_devices, pool=pool),
    )


@router.get("/jobs", auth=MAY_READ, response={200: Page[JobOut]} | problems(422), summary="The team's jobs")
def list_jobs(
    request: HttpRequest,
    state: Annotated[list[JobState], Query()] = [],  # noqa: B006  # ninja wants the list itself; nobody changes it
    project: Annotated[Text | None, Query(max_length=64)] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[JobOut]:
    """Newest first. `state` may be given more than once."""
    jobs = jobs_visible_to(caller_of(request).team)
    if state:
        jobs = jobs.filter(state__in=state)
    if project is not None:
        jobs = jobs.filter(project_id=project)
    found, next_cursor = page_after(jobs, cursor=cursor, limit=limit)
    return Page(data=[represent_job(job) for job in found], has_more=next_cursor is not None, next_cursor=next_cursor)


@router.get("/jobs/{job_id}", auth=MAY_READ, response={200: JobOut} | problems(404), summary="One job")
def show(request: HttpRequest, job_id: str) -> JobOut:
    return represent_job(the_job(caller_of(request).team, job_id))


@router.post(
    "/jobs/{job_id}/cancel",
    auth=MAY_WRITE,
    response={202: JobOut, 200: JobOut} | problems(404, 409),
    summary="Cancel",
)
def cancel(request: HttpRequest, job_id: str) -> Status[JobOut]:
    """202: the job is cancelled, or its engine was asked to let go. 200: it is already stopping or cancelled.
    409 `invalid_state`: it has succeeded or failed."""
    caller = caller_of(request)
    job = the_job(caller.team, job_id)
    _, changed = cancel_job(job.pk, actor=caller.actor, now=database_now())
    return Status(202 if changed else 200, represent_job(the_job(caller.team, job_id)))


@router.get(
    "/jobs/{job_id}/events", auth=MAY_READ, response={200: EventsOut} | problems(404, 422), summary="What happened"
)
def events(
    request: HttpRequest,
    job_id: str,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="The last `seq` that you have seen.")] = 0,
    limit: Limit = DEFAULT_LIMIT,
) -> EventsOut:
    found = list(events_after(the_job(caller_of(request).team, job_id), after)[: limit + 1])
    page = found[:limit]
    return EventsOut(
        data=[represent_event(event) for event in page],
        has_more=len(found) > limit,
        next_after=page[-1].seq if page else after,
    )


@router.get(
    "/jobs/{job_id}/attempts", auth=MAY_READ, response={200: Page[AttemptOut]} | problems(404), summary="Its attempts"
)
def attempts(request: HttpRequest, job_id: str) -> Page[AttemptOut]:
    """Oldest first."""
    return Page(data=[represent_attempt(row) for row in attempts_of(the_job(caller_of(request).team, job_id))])


def _project(team: Team, project_id: str) -> Project:
    project = projects_of(team).filter(pk=project_id).first()
    if project is None:
        error = FieldError(pointer="/project", code="not_found", message="your team has no project with this id")
        raise NotFound("There is no project with this id.", errors=[error])
    return project


def _pool(team: Team, name: str | None) -> ResourcePool:
    """By name; without one, the team's only pool."""
    choices = list(pools_of(team))
    found = choices if name is None else [pool for pool in choices if pool.name == name]
    if len(found) != 1:
        offered = ", ".join(pool.name for pool in choices) or "none yet: ask an administrator for a quota"
        error = FieldError(pointer="/pool", code="unknown_pool", message=f"name one of your team's pools: {offered}")
        raise Invalid(errors=[error])
    return found[0]
