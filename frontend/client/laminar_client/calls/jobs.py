"""Jobs: submit, inspect, change, wait. GET /schemas/job-spec describes `spec`."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ..answers.explanations import Explanation
from ..answers.jobs import Attempt, Cancelled, CancelledJobs, Fault, Job, Preview
from ..answers.usage import JobUsage
from ..errors import NotFinished
from ..wire import Now, Pause, Procedure, Request, Stream, get, patch, post
from .pages import answer, each_of, whole_list

POLL_S = 1.0
LONGEST_POLL_S = 5.0
_POLL_GROWTH = 1.25
MOST_AT_ONCE = 100


def submit(
    spec: Mapping[str, Any],
    *,
    project: str,
    pool: str | None = None,
    start_from: str | None = None,
    idempotency_key: str | None = None,
) -> Procedure[Job]:
    """Submits one job, however often the request is retried: it always carries an Idempotency-Key. Pass your own key to
    make a restart of your program safe, too. `start_from` is the id of a checkpoint."""
    body: dict[str, Any] = {"spec": dict(spec), "project": project} | _given(pool=pool, start_from=start_from)
    yours = idempotency_key or uuid.uuid4().hex
    return (yield from answer(Job, post("jobs", body=body, idempotency_key=yours)))


def preview(spec: Mapping[str, Any], *, pool: str | None = None) -> Procedure[Preview]:
    """Checks a spec without submitting it: defaults, whether it would start now, and whether it fits the devices."""
    body = {"spec": dict(spec)} | _given(pool=pool)
    return (yield from answer(Preview, post("jobs:preview", body=body, repeatable=True)))


def show(job_id: str) -> Procedure[Job]:
    return (yield from answer(Job, get("jobs", job_id)))


def each(
    *,
    state: Sequence[str] = (),
    project: str | None = None,
    tag: Sequence[str] = (),
    q: str | None = None,
    created_by: str | None = None,
    most: int | None = None,
) -> Stream[Job]:
    """Newest first, at most `most`. `tag`: jobs with all of these tags; `q`: part of the name."""
    query = {"state": list(state), "project": project, "tag": list(tag), "q": q, "created_by": created_by}
    return each_of(Job, "jobs", query=query, most=most)


def change(
    job_id: str,
    *,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    priority: int | None = None,
    max_runtime_s: int | None = None,
    if_match: str | None = None,
) -> Procedure[Job]:
    """Name and tags can change until the job has ended, the others while it waits. Omitted values stay unchanged."""
    listed = None if tags is None else list(tags)
    body = _given(name=name, tags=listed, priority=priority, max_runtime_s=max_runtime_s)
    return (yield from answer(Job, patch("jobs", job_id, body=body, if_match=if_match)))


def cancel(job_id: str) -> Procedure[Job]:
    return (yield from answer(Job, _asked(job_id, "cancel")))


def cancel_many(job_ids: Sequence[str]) -> Procedure[list[Cancelled]]:
    """At most 100 per request. Jobs are cancelled independently: an ended or unknown one does not stop the others."""
    found: list[Cancelled] = []
    for first in range(0, len(job_ids), MOST_AT_ONCE):
        ids = list(job_ids[first : first + MOST_AT_ONCE])
        page = yield from answer(CancelledJobs, post("jobs:cancel", body={"ids": ids}, repeatable=True))
        found += page.data
    return found


def pause(job_id: str) -> Procedure[Job]:
    """Saves a checkpoint and releases the devices."""
    return (yield from answer(Job, _asked(job_id, "pause")))


def resume(job_id: str) -> Procedure[Job]:
    """Returns the job to the queue; it resumes from its checkpoint."""
    return (yield from answer(Job, _asked(job_id, "resume")))


def kill(job_id: str) -> Procedure[Job]:
    """For admins. Ends the job at once, without a checkpoint."""
    return (yield from answer(Job, _asked(job_id, "kill")))


def retry(
    job_id: str,
    *,
    start_from: str | None = None,
    changes: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Procedure[Job]:
    """Creates a new job from an ended one. `start_from`: a checkpoint's id, "start", or None for the newest checkpoint;
    `changes` are merged into the spec."""
    body: dict[str, Any] = _given(changes=dict(changes) if changes else None)
    if start_from is not None:
        body["from"] = start_from
    request = post("jobs", job_id, "retry", body=body, idempotency_key=idempotency_key or uuid.uuid4().hex)
    return (yield from answer(Job, request))


def explain(job_id: str) -> Procedure[Explanation]:
    """Why the job waits and what would let it start, or why it failed and what to do."""
    return (yield from answer(Explanation, get("jobs", job_id, "explain")))


def faults(job_id: str, *, most: int = 100) -> Procedure[list[Fault]]:
    """Faults that the engine detected and repaired, newest first; at most 100."""
    return (yield from whole_list(Fault, get("jobs", job_id, "faults", query={"limit": most})))


def attempts(job_id: str) -> Procedure[list[Attempt]]:
    return (yield from whole_list(Attempt, get("jobs", job_id, "attempts")))


def usage(job_id: str) -> Procedure[JobUsage]:
    return (yield from answer(JobUsage, get("jobs", job_id, "usage")))


def wait(job_id: str, *, timeout_s: float | None = None) -> Procedure[Job]:
    """Waits until the job has ended. Raises `NotFinished` after `timeout_s`."""
    began: float = yield Now()
    interval = POLL_S
    while True:
        job = yield from show(job_id)
        if job.is_over:
            return job
        spent: float = (yield Now()) - began
        if timeout_s is not None and spent + interval > timeout_s:
            raise NotFinished(f"{job.id} is {job.state} after {spent:.0f} s.")
        yield Pause(interval)
        interval = min(LONGEST_POLL_S, interval * _POLL_GROWTH)


def _asked(job_id: str, verb: str) -> Request:
    """Idempotent by contract: a repeated request has no further effect."""
    return post("jobs", job_id, verb, repeatable=True)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
