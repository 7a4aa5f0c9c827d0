"""Why an attempt failed: the evidence kept, the retries, and the explanation for the user."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from backend.jobs.attempts.evidence import Evidence, scrub
from backend.jobs.attempts.failures import ADVICE, RETRIES, explain_failure, next_try, note_failure
from backend.jobs.attempts.launching import gather_evidence
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState, OutboxMessage
from backend.reconcile.actions import lose_attempt, run_out_of_time
from backend.reconcile.views import Held, held_jobs
from backend.telemetry.intake.ingest import ingest_facts
from backend.telemetry.logs.last_lines import BATCHES_READ
from engine.spec.control import FactBatch
from tests.backend.conftest import Api, MakeCheckpoint
from tests.backend.fake_ray import FakeRay


def say(attempt: JobAttempt, *bodies: dict[str, Any], now: datetime) -> None:
    facts = [{"seq": seq, "at": now, "body": body} for seq, body in enumerate(bodies, start=1)]
    batch = FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": facts})
    ingest_facts(attempt, batch, now=now)


FAULT = {"type": "fault_detected", "component": "environment", "message": "it dies", "action": "replaced"}
FAILED = {
    "type": "run_finished", "outcome": "failed", "failure_class": "user_code",
    "message": "The environment keeps crashing.\nTraceback: …",
}  # fmt: skip


def test_failed_job_is_explained_by_its_evidence(
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
    explanation = explain_failure(job)
    assert (explanation.failure_class, explanation.cause) == ("user_code", "The environment keeps crashing.")
    assert explanation.advice == ADVICE["user_code"] and (explanation.tries, explanation.tried) == (1, 1)
    assert (explanation.resume_step, explanation.attempt) == (4, 1)
    seen = explanation.evidence
    assert (seen.phase, seen.step, seen.faults) == ("training", 5, ["environment: it dies"])
    assert seen.last_fact is not None and seen.last_fact.seq == 4
    assert seen.log_tail.startswith("last words") and "secret" not in seen.log_tail


def lines(component: str, *entries: tuple[str, str], at: datetime) -> dict[str, Any]:
    rows = [{"at": at, "level": level, "message": message} for level, message in entries]
    return {"type": "log_lines", "component": component, "lines": rows}


def later(now: datetime, seconds: int) -> datetime:
    return now + timedelta(seconds=seconds)


def evidence_of(attempt: JobAttempt) -> Evidence:
    attempt.refresh_from_db()
    return Evidence.model_validate(attempt.evidence)


class TestLastWords:
    """From our own log store: Ray has no logs in these tests."""

    def test_last_errors_of_each_part_are_evidence(
        self, api: Api, job: Job, attempt: JobAttempt, now: datetime
    ) -> None:
        """Much later lines of another part do not displace them, and lines that are no errors are no evidence."""
        noise = [("info", f"step {each}") for each in range(5)]
        say(
            attempt,
            lines("environment", *[("error", f"ZeroDivisionError {each}") for each in range(9)], at=later(now, 1)),
            lines("trainer", ("error", "no batch for 60 s"), at=later(now, 2)),
            *[lines("rollout-0", *noise, at=later(now, 3)) for _ in range(BATCHES_READ + 5)],
            FAILED,
            now=now,
        )
        lines_out = api.get(f"/jobs/{job.pk}/explain").json()["failure"]["evidence"]["lines"]
        assert [(line["component"], line["message"]) for line in lines_out] == [
            *[("environment", f"ZeroDivisionError {each}") for each in (5, 6, 7, 8)],
            ("trainer", "no batch for 60 s"),
        ]
        assert {line["level"] for line in lines_out} == {"error"}

    def test_last_lines_are_evidence_without_errors(self, job: Job, attempt: JobAttempt, now: datetime) -> None:
        say(
            attempt,
            lines("driver", *[("info", f"line {each}") for each in range(20)], at=now),
            lines("relay-0", ("warning", "slow disk"), at=later(now, 1)),
            FAILED,
            now=now,
        )
        seen = evidence_of(attempt).lines
        assert [line.message for line in seen] == [*[f"line {each}" for each in range(13, 20)], "slow disk"]

    def test_many_parts_and_long_lines_stay_small(self, job: Job, attempt: JobAttempt, now: datetime) -> None:
        parts = [lines(f"rollout-{n}", *[("error", "x" * 1_000)] * 50, at=later(now, n)) for n in range(40)]
        say(attempt, *parts, FAILED, now=now)
        seen = evidence_of(attempt)
        assert list(seen.by_component) == [f"rollout-{n}" for n in (39, 38, 37, 36, 35)], "those with the newest lines"
        assert {len(part_lines) for part_lines in seen.by_component.values()} == {4}

    def test_lines_of_earlier_attempt_are_excluded(self, job: Job, attempt: JobAttempt, now: datetime) -> None:
        say(attempt, lines("driver", ("error", "the first"), at=now), now=now)
        JobAttempt.objects.filter(pk=attempt.pk).update(ended_at=now)
        second = JobAttempt.objects.create(
            job=job, n=2, fence=job.fence, submission_id="s2", token_sha256="t2", created_at=now
        )
        say(second, lines("driver", ("error", "the second"), at=now), FAILED, now=now)
        assert [line.message for line in evidence_of(second).lines] == ["the second"]

    def test_lost_driver_leaves_its_shipped_lines(self, job: Job, attempt: JobAttempt, now: datetime) -> None:
        say(attempt, lines("trainer", ("error", "CUDA out of memory"), at=now), now=now)
        attempt.refresh_from_db()
        job.refresh_from_db()
        with transaction.atomic():
            lose_attempt(held(job, attempt), "FAILED", "", now)
        seen = evidence_of(attempt)
        assert [line.message for line in seen.lines] == ["CUDA out of memory"] and seen.log_tail == ""


def held(job: Job, attempt: JobAttempt) -> Held:
    return next(each for each in held_jobs(attempt.created_at, attempt.created_at) if each.job.pk == job.pk)


def test_timeout_is_explained_by_the_attempt_that_ran_out(job: Job, attempt: JobAttempt, now: datetime) -> None:
    """The driver's own report during shutdown does not turn it into another failure."""
    phase = {"type": "phase_changed", "phase": "training"}
    say(attempt, phase, lines("trainer", ("warning", "a slow step"), at=now), now=now)
    with transaction.atomic():
        run_out_of_time(held(job, attempt), now)
    body = FAILED | {"failure_class": "platform", "message": "killed while saving"}
    batch = {"attempt": 1, "fence": attempt.fence, "facts": [{"seq": 3, "at": now, "body": body}]}
    ingest_facts(attempt, FactBatch.model_validate(batch), now=now)
    job.refresh_from_db()
    why = explain_failure(job)
    assert (job.state, why.failure_class, why.attempt) == ("failed", "timeout", 1)
    assert [line.message for line in why.evidence.lines] == ["a slow step"] and "larger max_runtime_s" in why.advice


def test_attempt_of_another_class_does_not_explain_job(job: Job, attempt: JobAttempt, now: datetime) -> None:
    """Its last attempt was lost with a machine; then the job was refused for its spec."""
    note_failure(job, attempt, "infrastructure", exit_reason="node gone")
    with transaction.atomic():
        job = locked_job(job.pk)
        cause: dict[str, Any] = {"actor": "scheduler", "now": now, "reason": "exceeds_max", "message": "too large"}
        change_state(job, JobState.STOPPING, target_state=JobState.FAILED, failure_class="config", **cause)
        change_state(job, JobState.FAILED, **cause)
    assert explain_failure(job).evidence == Evidence()


def test_attempt_shows_its_evidence(api: Api, job: Job, attempt: JobAttempt, now: datetime) -> None:
    say(attempt, FAILED, now=now)
    [row] = api.get(f"/jobs/{job.pk}/attempts").json()["data"]
    assert row["failure_class"] == "user_code" and "keeps crashing" in row["evidence"]["exit_reason"]


@pytest.mark.parametrize("failure_class", ["user_code", "reward", "config", "data", "memory", "timeout", "budget"])
def test_own_failure_is_not_retried(job: Job, attempt: JobAttempt, now: datetime, failure_class: str) -> None:
    say(attempt, {**FAILED, "failure_class": failure_class}, now=now)
    job.refresh_from_db()
    assert (job.state, job.failure_class) == ("failed", failure_class)
    assert not next_try(job, failure_class).is_left and failure_class in ADVICE


@pytest.mark.parametrize("reported", [{"failure_class": "platform"}, {"failure_class": "infrastructure"}, {}])
def test_unknown_cause_is_tried_once_more(
    job: Job, attempt: JobAttempt, now: datetime, reported: dict[str, str]
) -> None:
    body = {"type": "run_finished", "outcome": "failed", "message": "no progress for 600 s"} | reported
    say(attempt, body, now=now)
    job.refresh_from_db()
    attempt.refresh_from_db()
    assert (job.state, attempt.failure_class) == ("recovering", "platform")
    following = next_try(job, "platform")
    assert (following.is_left, following.tried, following.tries) == (True, 1, 2) and "billed" in ADVICE["platform"]


def test_tries_count_per_class_since_last_checkpoint(job: Job, attempt: JobAttempt) -> None:
    def ended(n: int, failure_class: str) -> None:
        JobAttempt.objects.create(
            job=job,
            n=n,
            fence=n,
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


def test_evidence_holds_no_secrets() -> None:
    text = "key lam_live_abcd1234_SECRET, Authorization: Bearer abc.def and lam_run_xyz\0"
    assert scrub(text) == "key lam_live_…, Authorization: Bearer … and lam_run_…"
