"""Why an attempt failed: what is kept of it, what is tried again, and what a user is told."""

from datetime import datetime
from typing import Any

import pytest

from backend.jobs.failures import ADVICE, RETRIES, explain_failure, next_try, scrubbed
from backend.jobs.launching import gather_evidence
from backend.jobs.models import Job, JobAttempt, OutboxMessage
from backend.telemetry.ingest import ingest_facts
from engine.spec.control import FactBatch
from tests.backend.conftest import Api, MakeCheckpoint
from tests.backend.fake_ray import FakeRay


def say(attempt: JobAttempt, *bodies: dict[str, Any], now: datetime) -> None:
    facts = [{"seq": seq, "at": now, "body": body} for seq, body in enumerate(bodies, start=1)]
    batch = FactBatch.model_validate({"attempt": attempt.n, "epoch": attempt.epoch, "facts": facts})
    ingest_facts(attempt, batch, now=now)


FAULT = {"type": "fault_detected", "component": "environment", "message": "it dies", "action": "replaced"}
FAILED = {
    "type": "run_finished", "outcome": "failed", "failure_class": "user_code",
    "message": "The environment keeps dying.\nTraceback: …",
}  # fmt: skip


def test_a_failed_job_is_explained_by_what_was_seen(
    job: Job, attempt: JobAttempt, make_checkpoint: MakeCheckpoint, now: datetime
) -> None:
    make_checkpoint(job, step=4)
    phase = {"type": "phase_changed", "phase": "training"}
    trained = {"type": "step_trained", "step": 5, "metrics": {}}
    say(attempt, phase, trained, FAULT, FAILED, now=now)
    assert OutboxMessage.objects.filter(topic="evidence", key=job.pk).exists()
    for _ in range(2):
        gather_evidence(job.pk, FakeRay())
    job.refresh_from_db()
    told = explain_failure(job)
    assert (told.failure_class, told.cause) == ("user_code", "The environment keeps dying.")
    assert told.advice == ADVICE["user_code"] and (told.tries, told.tried) == (1, 1)
    assert (told.resume_step, told.attempt) == (4, 1)
    seen = told.evidence
    assert (seen.phase, seen.step, seen.faults) == ("training", 5, ["environment: it dies"])
    assert seen.last_fact is not None and seen.last_fact.seq == 4
    assert seen.log_tail.startswith("last words") and "secret" not in seen.log_tail


def test_the_attempt_shows_its_evidence(api: Api, job: Job, attempt: JobAttempt, now: datetime) -> None:
    say(attempt, FAILED, now=now)
    [row] = api.get(f"/jobs/{job.pk}/attempts").json()["data"]
    assert row["failure_class"] == "user_code" and "keeps dying" in row["evidence"]["exit_reason"]


@pytest.mark.parametrize("failure_class", ["user_code", "reward", "config", "data", "platform", "timeout", "budget"])
def test_what_is_the_jobs_own_is_not_tried_again(
    job: Job, attempt: JobAttempt, now: datetime, failure_class: str
) -> None:
    say(attempt, {**FAILED, "failure_class": failure_class}, now=now)
    job.refresh_from_db()
    assert (job.state, job.failure_class) == ("failed", failure_class)
    assert not next_try(job, failure_class).is_left and failure_class in ADVICE


def test_each_class_is_counted_for_itself_back_to_the_last_checkpoint(job: Job, attempt: JobAttempt) -> None:
    def ended(n: int, failure_class: str) -> None:
        JobAttempt.objects.create(
            job=job,
            n=n,
            epoch=n,
            submission_id=f"s{n}",
            token_sha256=f"t{n}",
            created_at=attempt.created_at,
            ended_at=attempt.created_at,
            failure_class=failure_class,
        )

    for n, failure_class in enumerate(["infrastructure", "capacity", "infrastructure"], start=2):
        ended(n, failure_class)
    assert (next_try(job, "infrastructure").tried, next_try(job, "capacity").tried) == (2, 1)
    job.checkpoints.create(
        attempt=3, step=1, version=1, uri="x", manifest_sha256="a", num_bytes=1, created_at=attempt.created_at
    )
    assert next_try(job, "infrastructure").tried == 1
    ended(5, "infrastructure")
    ended(6, "infrastructure")
    assert next_try(job, "infrastructure").backoff_s == 30
    ended(7, "infrastructure")
    last = next_try(job, "infrastructure")
    assert not last.is_left and last.tried == last.tries == RETRIES["infrastructure"].tries


def test_secrets_of_ours_do_not_get_into_evidence() -> None:
    text = "key lam_live_abcd1234_SECRET, Authorization: Bearer abc.def and lam_run_xyz\0"
    assert scrubbed(text) == "key lam_live_…, Authorization: Bearer … and lam_run_…"
