"""A job's trace across control plane and engine, received by a real collector once the job has ended."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from backend.jobs.attempts.tracing import send_trace
from backend.jobs.background import HANDLERS
from backend.jobs.lifecycle import change_state, locked_job, record_event
from backend.jobs.models import Job, JobAttempt, JobState, OutboxMessage
from backend.jobs.outbox import deliver
from engine.sinks.memory import MemorySink
from engine.sinks.tracing import SpanSender, TracingSink
from engine.spec.facts import DriverStarted, PipelineReady, RunFinished, StepTrained
from tests.otlp_collector import Collector


@pytest.fixture
def collector(settings: Any) -> Iterator[Collector]:
    with Collector() as collector:
        settings.ENVIRONMENT = replace(settings.ENVIRONMENT, otlp_url=f"{collector.url}/v1/traces")
        yield collector


def ended(attempt: JobAttempt, now: datetime, to: JobState = JobState.SUCCEEDED) -> Job:
    """Ten seconds in each state, five of them until the submission to Ray."""
    JobAttempt.objects.filter(pk=attempt.pk).update(submitted_at=now + timedelta(seconds=5))
    with transaction.atomic():
        job = locked_job(attempt.job_id)
        for index, state in enumerate((JobState.RUNNING, JobState.STOPPING, to), 1):
            change_state(job, state, actor="engine:1", now=now + timedelta(seconds=10 * index))
            record_event(job, "checkpoint_saved", actor="engine:1", now=now, message="the customer's words")
    return job


def deliver_traces(now: datetime) -> None:
    due = OutboxMessage.objects.filter(topic="trace").values_list("pk", flat=True)
    deliver(list(due), HANDLERS, now)


def test_ended_job_is_a_trace_of_its_states(attempt: JobAttempt, now: datetime, collector: Collector) -> None:
    job = ended(attempt, now)
    deliver_traces(now)
    (root,) = collector.named("job")
    assert root.parent == "" and "submitted" in root.events and "checkpoint_saved" in root.events
    assert root.attributes == {
        "laminar.job": job.pk, "laminar.state": "succeeded", "laminar.steps": 0, "laminar.attempts": 1,
    }  # fmt: skip
    others = [span for span in collector.spans if span is not root]
    assert {span.parent for span in others} == {root.id} and {span.trace for span in others} == {root.trace}
    seconds = {span.name: (span.ended - span.began) / 1e9 for span in others}
    assert seconds == {"queue": 0, "admission": 5, "start": 10, "run": 10, "end": 10}
    assert "customer" not in "".join(collector.bodies) and job.name not in "".join(collector.bodies)


def test_driver_spans_share_the_trace(attempt: JobAttempt, now: datetime, collector: Collector) -> None:
    sender = SpanSender(f"{collector.url}/v1/traces", job=attempt.job_id)
    driver = TracingSink(MemorySink(), sender, attempt=attempt.n, fence=attempt.fence)
    for fact in (
        DriverStarted(host="h", pid=1), PipelineReady(num_replicas=1, num_parameters=1),
        StepTrained(step=1, metrics={}), RunFinished(outcome="succeeded"),
    ):  # fmt: skip
        driver.record(fact)
    sender.close()
    ended(attempt, now)
    deliver_traces(now)
    (root,), (of_driver,) = collector.named("job"), collector.named("driver")
    assert {span.trace for span in collector.spans} == {root.trace} and of_driver.parent == root.id
    assert {span.service for span in collector.spans} == {"laminar", "laminar-engine"}
    names = {span.name for span in collector.spans}
    assert {"queue", "admission", "driver", "start", "first step", "step", "end"} <= names


def test_failed_job_is_a_failed_trace(attempt: JobAttempt, now: datetime, collector: Collector) -> None:
    ended(attempt, now, JobState.FAILED)
    deliver_traces(now)
    assert [span.is_failure for span in collector.named("job")] == [True]


def test_without_a_collector_nothing_is_written_or_sent(attempt: JobAttempt, now: datetime) -> None:
    ended(attempt, now)
    assert not OutboxMessage.objects.filter(topic="trace").exists()


def test_unreachable_collector_delays_nothing(
    attempt: JobAttempt, now: datetime, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, otlp_url="http://127.0.0.1:1/v1/traces")
    job = ended(attempt, now)
    deliver_traces(now)
    assert not OutboxMessage.objects.filter(topic="trace").exists() and f"trace lost job={job.pk}" in caplog.text


def test_running_job_sends_no_trace(attempt: JobAttempt, collector: Collector) -> None:
    send_trace(attempt.job_id)
    assert not collector.bodies
