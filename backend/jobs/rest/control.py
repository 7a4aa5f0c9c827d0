"""REST: control of existing jobs. Shape in, call, shape out; the services decide."""

from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status
from pydantic import BaseModel, Field

from backend.accounts.keys.bearer import MAY_READ, MAY_WRITE, caller_of
from backend.api.idempotency import Key
from backend.api.pagination import DEFAULT_LIMIT, Limit, Page
from backend.api.problems import problems
from backend.borders.types import Id, PathId
from backend.clock import database_now
from backend.errors import Denied
from backend.jobs.control.cancelling import MAY_KILL, cancel_many, kill_job
from backend.jobs.control.pausing import pause_job, resume_job
from backend.jobs.models import Job
from backend.jobs.rest.new_job import COUNTED_SUBMISSION, answer_with_new_job
from backend.jobs.rest.representations import FaultOut, JobOut, represent_fault, represent_job
from backend.jobs.selectors import faults_of, the_job
from backend.jobs.submitting.retrying import retry_job
from backend.jobs.submitting.submit import Submitter
from engine.spec.strict import Strict

router = Router(tags=["Jobs"])
MOST_AT_ONCE = 100


class RetryJob(Strict):
    start_from: Id | None = Field(
        None,
        alias="from",
        description='One of the job\'s checkpoints, or "start" for the beginning. Default: its newest checkpoint.',
    )
    changes: dict[str, Any] = Field(
        default_factory=dict,
        description='Merged into the spec: {"training": {"steps": 200}} changes only that. The name gets "(retry 2)" '
        "unless you set one.",
    )


class CancelJobs(Strict):
    ids: list[Id] = Field(min_length=1, max_length=MOST_AT_ONCE)


class CancelledOut(BaseModel):
    id: str
    result: Literal["cancelled", "already", "finished", "not_found"]


class CancelledJobsOut(BaseModel):
    """Results of a bulk cancel: one entry per id, in the order of the request."""

    data: list[CancelledOut]


@router.post(
    "/jobs:cancel",
    auth=MAY_WRITE,
    response={200: CancelledJobsOut} | problems(400, 413, 415, 422),
    summary="Cancel jobs",
)
def cancel_several(request: HttpRequest, body: CancelJobs) -> CancelledJobsOut:
    """Each id has its own result: a finished or unknown job does not affect the others."""
    caller = caller_of(request)
    ids = list(dict.fromkeys(body.ids))
    results = cancel_many(caller.team, ids, actor=caller.actor, now=database_now())
    return CancelledJobsOut(data=[CancelledOut.model_validate({"id": one, "result": what}) for one, what in results])


@router.post(
    "/jobs/{job_id}/pause",
    auth=MAY_WRITE,
    response={202: JobOut, 200: JobOut} | problems(404, 409),
    summary="Pause a job",
)
def pause(request: HttpRequest, job_id: PathId) -> Status[JobOut]:
    """The engine ends its step, writes a checkpoint and releases the devices. 202: pause requested. 200: the job is
    already pausing or paused. 409 `invalid_state`: it is waiting, stopping or finished."""
    caller = caller_of(request)
    _, changed = pause_job(the_job(caller.team, job_id).pk, actor=caller.actor, now=database_now())
    return Status(202 if changed else 200, represent_job(the_job(caller.team, job_id)))


@router.post(
    "/jobs/{job_id}/resume",
    auth=MAY_WRITE,
    response={202: JobOut, 200: JobOut} | problems(404, 409),
    summary="Resume a job",
)
def resume(request: HttpRequest, job_id: PathId) -> Status[JobOut]:
    """A paused job joins the end of its pool's queue and resumes from its checkpoint. A pausing job first completes its
    pause and returns to its old place in the queue. 200: it is already queued, running or about to return to the queue.
    409 `invalid_state`: it is stopping or finished."""
    caller = caller_of(request)
    _, changed = resume_job(the_job(caller.team, job_id).pk, actor=caller.actor, now=database_now())
    return Status(202 if changed else 200, represent_job(the_job(caller.team, job_id)))


@router.post(
    "/jobs/{job_id}/retry",
    auth=MAY_WRITE,
    throttle=COUNTED_SUBMISSION,
    response={202: JobOut} | problems(400, 404, 409, 413, 415, 422, 429),
    summary="Retry a job",
)
def retry(request: HttpRequest, job_id: PathId, body: RetryJob, idempotency_key: Key = None) -> HttpResponse:
    """Creates a new job from a finished one, which does not change. The new job starts from a checkpoint, with your
    changes to the spec. 409 `invalid_state`: the job has not finished."""
    caller, now = caller_of(request), database_now()
    job = the_job(caller.team, job_id)

    def make() -> Job:
        return retry_job(
            job,
            start_from=body.start_from,
            changes=body.changes,
            by=Submitter(user=caller.user, key=caller.key),
            now=now,
        )

    return answer_with_new_job(request, make, key=idempotency_key, spec_at="/changes", now=now)


@router.post(
    "/jobs/{job_id}/kill",
    auth=MAY_WRITE,
    response={202: JobOut, 200: JobOut} | problems(404),
    summary="Kill a job",
)
def kill(request: HttpRequest, job_id: PathId) -> Status[JobOut]:
    """Ends a job that does not stop, without waiting for its engine: no checkpoint is written first. For admins and
    owners of the team; recorded in the audit log. 200: the job had already finished."""
    caller = caller_of(request)
    job = the_job(caller.team, job_id)
    if caller.role not in MAY_KILL:
        raise Denied("Only admins and owners of the team can kill jobs. Cancel the job instead.")
    _, changed = kill_job(job.pk, actor=caller.actor, now=database_now())
    return Status(202 if changed else 200, represent_job(the_job(caller.team, job_id)))


@router.get(
    "/jobs/{job_id}/faults", auth=MAY_READ, response={200: Page[FaultOut]} | problems(404, 422), summary="List faults"
)
def faults(request: HttpRequest, job_id: PathId, limit: Limit = DEFAULT_LIMIT) -> Page[FaultOut]:
    """Faults that the engine detected and handled, newest first. The job's events contain all of them."""
    rows = faults_of(the_job(caller_of(request).team, job_id))[: limit + 1]
    return Page(data=[represent_fault(event) for event in rows[:limit]], has_more=len(rows) > limit)
