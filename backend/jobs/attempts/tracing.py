"""The control plane's spans of a job's trace, sent to the collector (LAMINAR_OTLP_URL) once the job has ended.

    events of the job ──▶ a span for each stay in a state      attempts ──▶ admission: devices granted ──▶ handed to Ray

Invariants:
- the outbox sends it after the commit that ended the job, usually once; a failed request is logged, never retried, and
  delays nothing else;
- the engine's drivers send their spans of the same trace; engine/spec/logs/spans.py holds what both share.
"""

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final

import httpx
from django.conf import settings

from backend.jobs.models import Job, JobEvent, JobState
from engine.spec.logs.spans import JOB, Span, document

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
MOST_EVENTS: Final = 1_000  # per job; weeks of checkpoints and faults beyond it are on its page
STAYS: Final = {
    JobState.VALIDATING: "submission",
    JobState.QUEUED: "queue",
    JobState.STARTING: "start",
    JobState.RUNNING: "run",
    JobState.RECOVERING: "recovery",
    JobState.PAUSING: "pause",
    JobState.PAUSED: "paused",
    JobState.STOPPING: "end",
}


def send_trace(job_id: str) -> None:
    url = settings.ENVIRONMENT.otlp_url
    job = Job.objects.filter(pk=job_id, finished_at__isnull=False).first()
    if not url or job is None:
        return
    spans = list(spans_of(job))
    try:
        answer = httpx.post(url, json=document(job.pk, spans, service="laminar"), timeout=TIMEOUT_S, trust_env=False)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        log.warning("trace lost job=%s spans=%d error=%s", job_id, len(spans), type(error).__name__)


def spans_of(job: Job) -> Iterator[Span]:
    events = list(job.events.order_by("seq")[:MOST_EVENTS])
    assert job.finished_at is not None
    yield Span(
        name="job",
        of=JOB,
        parent=None,
        began=job.created_at.timestamp(),
        ended=job.finished_at.timestamp(),
        attributes={"laminar.state": job.state, "laminar.steps": job.step, "laminar.attempts": job.num_attempts},
        events=[(event.at.timestamp(), event.type) for event in events if event.type != "state_changed"],
        is_failure=job.state == JobState.FAILED,
    )
    yield from _stays(events)
    for attempt in job.attempts.filter(submitted_at__isnull=False).order_by("n"):
        assert attempt.submitted_at is not None
        yield _span("admission", ("admission", attempt.n), attempt.created_at, attempt.submitted_at, attempt=attempt.n)


def _stays(events: Sequence[JobEvent]) -> Iterator[Span]:
    moves = [event for event in events if event.to_state]
    for entered, left in pairwise(moves):
        if entered.to_state in STAYS:
            yield _span(STAYS[JobState(entered.to_state)], ("stay", entered.seq), entered.at, left.at)


def _span(name: str, of: tuple[str, int], began: datetime, ended: datetime, **values: int) -> Span:
    numbers = {f"laminar.{key}": value for key, value in values.items()}
    return Span(name=name, of=of, began=began.timestamp(), ended=ended.timestamp(), attributes=numbers)
