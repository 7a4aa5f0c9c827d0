"""Spans of an attempt, in the form that a real collector takes; and a run without a collector."""

import itertools
import logging

import pytest

from engine.sinks import tracing
from engine.sinks.memory import MemorySink
from engine.sinks.tracing import SpanSender, TracingSink
from engine.spec.facts import DriverStarted, FactBody, PhaseChanged, PipelineReady, RunFinished, StepTrained
from engine.spec.logs.spans import JOB, span_id, trace_id, traces_address
from tests.otlp_collector import Collector

RUN: list[FactBody] = [
    DriverStarted(host="secret-host", pid=1),
    PhaseChanged(phase="provisioning"),
    PhaseChanged(phase="training"),
    PipelineReady(num_replicas=1, num_parameters=10),
    StepTrained(step=1, metrics={"reward/mean": 0.5}),
    StepTrained(step=2, metrics={}),
    RunFinished(outcome="succeeded", message="the customer's words"),
]


def run(url: str, facts: list[FactBody] = RUN, *, attempt: int = 1) -> MemorySink:
    """One fact a second."""
    seconds, sink, sender = itertools.count(1_000), MemorySink(), SpanSender(traces_address(url), job="job_1")
    traced = TracingSink(sink, sender, attempt=attempt, fence=attempt, clock=lambda: float(next(seconds)))
    for fact in facts:
        traced.record(fact)
    sender.close()
    return sink


def test_attempt_has_spans_for_driver_phases_and_steps() -> None:
    with Collector() as collector:
        run(collector.url)
    assert {span.trace for span in collector.spans} == {trace_id("job_1")}
    (driver,) = collector.named("driver")
    assert driver.parent == span_id("job_1", JOB) and driver.attributes["laminar.outcome"] == "succeeded"
    inside = [span for span in collector.spans if span is not driver]
    assert {span.parent for span in inside} == {driver.id} and len({span.id for span in inside}) == len(inside)
    seconds = {
        (span.name, span.attributes.get("laminar.step")): (span.ended - span.began) / 1e9 for span in collector.spans
    }
    assert seconds == {
        ("driver", None): 6, ("start", None): 3, ("provisioning", None): 1, ("training", None): 4,
        ("first step", 1): 4, ("step", 1): 1, ("step", 2): 1,
    }  # fmt: skip


def test_spans_contain_no_text_of_customers_or_hosts() -> None:
    with Collector() as collector:
        run(collector.url)
    assert not [word for word in ("secret-host", "customer", "reward") if word in "".join(collector.bodies)]


def test_attempts_of_a_job_differ_within_one_trace() -> None:
    with Collector() as collector:
        run(collector.url)
        run(collector.url, attempt=2)
    assert len({span.trace for span in collector.spans}) == 1
    assert len({span.id for span in collector.spans}) == len(collector.spans) == 14


@pytest.mark.parametrize("status", [500, None])
def test_without_a_collector_facts_pass_and_log_warns_once(
    status: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=tracing.__name__):
        if status is None:
            sink = run("http://127.0.0.1:1")
        else:
            with Collector(status) as collector:
                sink = run(collector.url)
    assert sink.bodies == RUN and len(caplog.records) == 1 and "spans lost" in caplog.text


def test_spans_waiting_for_a_collector_are_bounded() -> None:
    sender = SpanSender(traces_address("http://127.0.0.1:1"), job="job_1")
    traced = TracingSink(MemorySink(), sender, attempt=1, fence=1)
    for step in range(1, tracing.MOST_WAITING + 500):
        traced.record(StepTrained(step=step, metrics={}))
    assert len(sender._waiting) <= tracing.MOST_WAITING
    sender.close()


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector", "http://", "http://collector/?x=1"])
def test_invalid_collector_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="LAMINAR_OTLP_URL"):
        traces_address(url)
