"""A job's facts after its control plane went back to an earlier release: a driver of a later one reports more."""

import json
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from prometheus_client import CollectorRegistry

from backend.api.request_times import registry
from backend.jobs.attempts.tokens import attempt_token
from backend.jobs.models import Job, JobAttempt, JobState
from backend.telemetry.intake import passed_over
from backend.telemetry.models import MetricPoint, SampleLedger
from engine.sinks import translation
from engine.sinks.control_plane import ControlPlane, Gap, Refused
from engine.sinks.http_shipper import HttpSink
from engine.sinks.spool import Spool
from engine.spec.control import FactAck
from engine.spec.fact_segments import segment_name
from engine.spec.facts import FACT_NAMES
from tests.uvicorn_server import run_uvicorn
from tests.waiting import eventually

LATER: dict[str, dict[str, Any]] = {
    "ready": {"type": "pipeline_ready", "num_replicas": 2, "num_parameters": 1, "colour": "blue"},
    "kind": {"type": "moon_seen", "phase": "full"},
    "step": {"type": "step_trained", "step": 1, "metrics": {"reward/mean": 0.5}, "ledger": {"trained": 4}, "tokens": 9},
    "phase": {"type": "phase_changed", "phase": "cooling"},
    "end": {"type": "run_finished", "outcome": "succeeded", "ledger": {"trained": 8, "failed": 1}, "mood": "glad"},
}


def facts_of(now: datetime, *bodies: dict[str, Any], needs: dict[str, list[str]] | None = None) -> list[dict[str, Any]]:
    return [
        {"seq": seq, "at": now.isoformat(), "body": body, "needs": (needs or {}).get(body["type"], [])}
        for seq, body in enumerate(bodies, start=1)
    ]


def assert_job_is_exact(job: Job) -> None:
    job.refresh_from_db()
    assert (job.state, job.step) == (JobState.SUCCEEDED, 1)
    assert SampleLedger.objects.get(job=job).counts == {"trained": 8, "failed": 1}
    assert [point.value for point in MetricPoint.objects.filter(series__job=job)] == [0.5]
    assert JobAttempt.objects.get(job=job).acked_seq == len(LATER)


class Recorded(ControlPlane):
    """The control plane, and the lines that reached it."""

    def __init__(self, control_url: str, token: str) -> None:
        super().__init__(control_url, token)
        self.sent: list[dict[str, Any]] = []

    def send_facts(self, *, attempt: int, fence: int, lines: list[bytes]) -> FactAck | Gap:
        self.sent += map(json.loads, lines)
        return super().send_facts(attempt=attempt, fence=fence, lines=lines)


@pytest.fixture
def drive(attempt: JobAttempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Ships a later driver's spool."""
    monkeypatch.setattr(translation, "FACT_NAMES", FACT_NAMES | {"moon_seen", "step_trained.tokens"})

    def ship(url: str, facts: list[dict[str, Any]]) -> tuple[HttpSink, Recorded]:
        (tmp_path / "facts").mkdir()
        lines = "".join(json.dumps(fact) + "\n" for fact in facts)
        (tmp_path / "facts" / segment_name(1)).write_text(lines)
        control = Recorded(url, attempt_token(attempt.job_id, attempt.n, attempt.fence))
        sink = HttpSink(spool=Spool(tmp_path / "facts"), control=control, attempt=attempt.n, fence=attempt.fence)
        sink._acked = 0
        sink.start(step=lambda: 0)
        return sink, control

    return ship


@pytest.mark.django_db(transaction=True)
def test_later_driver_reports_its_whole_job(attempt: JobAttempt, drive: Any, now: datetime) -> None:
    from backend.asgi import application

    with run_uvicorn(application) as url:
        sink, control = drive(url, facts_of(now, *LATER.values()))
        assert sink.close(timeout_s=60)
        control.close()
    assert_job_is_exact(Job.objects.get())
    assert [fact["seq"] for fact in control.sent] == [1, 2, 3, 4, 5], "each once"
    assert [fact["body"]["type"] for fact in control.sent] == [
        "pipeline_ready", "unknown", "step_trained", "unknown", "run_finished",
    ]  # fmt: skip
    assert "blue" not in str(control.sent) and "glad" not in str(control.sent)


@pytest.mark.django_db(transaction=True)
def test_later_fact_that_decides_the_bill_stops_with_advice(attempt: JobAttempt, drive: Any, now: datetime) -> None:
    from backend.asgi import application

    end = LATER["end"] | {"refund": 3}
    facts = facts_of(now, LATER["ready"], end, needs={"run_finished": ["run_finished.refund"]})
    with run_uvicorn(application) as url:
        sink, control = drive(url, facts)
        error = eventually(lambda: end_of(sink), "the sink reports why it ended")
        sink.close(timeout_s=0)
        control.close()
    assert isinstance(error, Refused)
    assert "does not know run_finished.refund; upgrade the control plane" in str(error)
    assert not Job.objects.get().is_terminal


def end_of(sink: HttpSink) -> Exception | None:
    try:
        sink.requests()
    except Refused as error:
        return error
    return None


# ── what arrives all the same: in the moment of the change, and from a spool ──────────────────────────────────────────


def post(attempt: JobAttempt, facts: list[dict[str, Any]]) -> Any:
    token = attempt_token(attempt.job_id, attempt.n, attempt.fence)
    batch = {"attempt": attempt.n, "fence": attempt.fence, "facts": facts}
    client = Client(headers={"Authorization": f"Bearer {token}"})
    return client.post("/internal/engine/facts", json.dumps(batch), content_type="application/json")


def num_passed_over(registry: CollectorRegistry, kind: str) -> float:
    return registry.get_sample_value("laminar_facts_passed_over_total", {"kind": kind}) or 0.0


def test_unreduced_facts_are_stored_counted_and_logged_once(
    attempt: JobAttempt, now: datetime, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed_over, "_logged", set())
    before = {kind: num_passed_over(registry, kind) for kind in ("step_trained", "unknown")}
    first, *others = facts_of(now, *LATER.values())
    with caplog.at_level(logging.WARNING):
        assert post(attempt, [first]).status_code == 200
        assert post(attempt, [first, *others]).json()["acked"] == len(LATER)
    assert_job_is_exact(Job.objects.get())
    assert num_passed_over(registry, "step_trained") - before["step_trained"] == 1
    assert num_passed_over(registry, "unknown") - before["unknown"] == 1
    assert caplog.text.count("moon_seen") == caplog.text.count("step_trained.tokens") == 1


@pytest.mark.parametrize(
    ("body", "need"),
    [
        ({"type": "refund_granted", "seconds": 3}, "refund_granted"),
        ({"type": "run_finished", "outcome": "succeeded", "refund": 3}, "run_finished.refund"),
        ({"type": "run_finished", "outcome": "failed", "failure_class": "weather"}, "run_finished.failure_class"),
    ],
)
def test_fact_whose_needed_name_is_unknown_is_refused_whole(
    attempt: JobAttempt, now: datetime, body: dict[str, Any], need: str
) -> None:
    answer = post(attempt, facts_of(now, LATER["ready"], body, needs={body["type"]: [need]}))
    assert answer.status_code == 422 and answer.json()["code"] == "not_understood"
    assert need in answer.json()["detail"] and "Upgrade the control plane" in answer.json()["detail"]
    attempt.refresh_from_db()
    assert attempt.acked_seq == 0 and Job.objects.get().state == JobState.STARTING


def test_vocabulary_is_for_drivers_only(attempt: JobAttempt) -> None:
    assert Client().get("/internal/engine/vocabulary").status_code == 401
    token = attempt_token(attempt.job_id, attempt.n, attempt.fence)
    answer = Client(headers={"Authorization": f"Bearer {token}"}).get("/internal/engine/vocabulary")
    assert set(answer.json()["names"]) == FACT_NAMES
