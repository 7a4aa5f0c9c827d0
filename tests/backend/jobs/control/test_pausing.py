"""Pause and resume: on request, by preemption, and when the engine's last fact arrives during a pause."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from backend.accounts.models import User
from backend.audit.models import AuditEntry
from backend.errors import InvalidState
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.control.pausing import begin_pause, pause_job, resume_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.telemetry.intake.ingest import ingest_facts, note_heartbeat
from engine.spec.control import FactBatch, Heartbeat
from tests.backend.checkpoint_addresses import checkpoint_address
from tests.backend.conftest import Api, MakeCheckpoint


@pytest.fixture
def running(job: Job, attempt: JobAttempt, now: datetime) -> Job:
    with transaction.atomic():
        change_state(locked_job(job.pk), JobState.RUNNING, actor="engine:1", now=now)
    job.refresh_from_db()
    return job


def say(attempt: JobAttempt, *bodies: dict[str, Any], now: datetime) -> None:
    attempt.refresh_from_db()
    first = attempt.acked_seq + 1
    facts = [{"seq": first + index, "at": now, "body": body} for index, body in enumerate(bodies)]
    batch = FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": facts})
    ingest_facts(attempt, batch, now=now)


def saved(attempt: JobAttempt, step: int) -> dict[str, Any]:
    return {
        "type": "checkpoint_saved", "step": step, "version": step, "uri": checkpoint_address(attempt, step),
        "manifest_sha256": "a" * 64, "num_bytes": 5,
    }  # fmt: skip


def trained(step: int) -> dict[str, Any]:
    return {"type": "step_trained", "step": step, "metrics": {"reward/mean": 0.5}}


def finished(outcome: str, **about: Any) -> dict[str, Any]:
    return {"type": "run_finished", "outcome": outcome} | about


def preempt(job: Job, now: datetime) -> None:
    with transaction.atomic():
        begin_pause(locked_job(job.pk), reason="preempted", message="Wanted back.", actor="scheduler", now=now)


def test_pause_reaches_driver_and_its_end_frees_devices(running: Job, attempt: JobAttempt, now: datetime) -> None:
    assert pause_job(running.pk, actor="user:1", now=now)[1]
    beat = Heartbeat(attempt=attempt.n, fence=attempt.fence, step=3)
    [request] = note_heartbeat(attempt, beat, now=now)
    assert request.kind == "pause"
    assert running.reservations.filter(released_at=None).exists(), "devices are held until the engine has ended"
    acknowledged = {"type": "request_acknowledged", "request_id": request.id}
    say(attempt, trained(3), saved(attempt, 3), acknowledged, finished("paused"), now=now)
    running.refresh_from_db()
    assert (running.state, running.step) == ("paused", 3) and "Will resume after step 3" in running.message
    assert not running.reservations.filter(released_at=None).exists()
    assert not running.attempts.filter(ended_at=None).exists()
    landed = running.events.get(to_state="paused")
    assert (landed.data["resume_step"], landed.data["lost_steps"]) == (3, 0)


def test_pause_without_checkpoint_shows_lost_steps(
    running: Job, attempt: JobAttempt, make_checkpoint: MakeCheckpoint, now: datetime
) -> None:
    make_checkpoint(running, step=2)
    pause_job(running.pk, actor="user:1", now=now)
    say(attempt, *(trained(step) for step in (3, 4)), finished("paused"), now=now)
    running.refresh_from_db()
    assert running.events.get(to_state="paused").data["lost_steps"] == 2
    assert "2 steps will be trained again" in running.message


def test_resumed_job_queues_last_and_uses_its_checkpoint(running: Job, attempt: JobAttempt, now: datetime) -> None:
    pause_job(running.pk, actor="user:1", now=now)
    say(attempt, trained(3), saved(attempt, 3), finished("paused"), now=now)
    later = now + timedelta(hours=2)
    assert resume_job(running.pk, actor="user:1", now=later)[1]
    running.refresh_from_db()
    assert (running.state, running.queued_at, running.reason) == ("queued", later, "not_evaluated_yet")
    assert schedule_pool(running.pool_id, now=later) == 1
    second = running.attempts.latest("n")
    assert (second.n, second.resume_from, second.resume_step) == (2, checkpoint_address(attempt, 3), 3)
    assert note_heartbeat(second, Heartbeat(attempt=2, fence=2, step=3), now=later) == [], "no old request is left"


def test_preempted_job_returns_to_its_old_place(running: Job, attempt: JobAttempt, now: datetime) -> None:
    before = running.queued_at
    preempt(running, now)
    say(attempt, trained(1), saved(attempt, 1), finished("paused"), now=now + timedelta(minutes=1))
    running.refresh_from_db()
    assert (running.state, running.queued_at) == ("queued", before)


def test_pausing_a_preempted_job_keeps_it_out_of_queue(running: Job, attempt: JobAttempt, now: datetime) -> None:
    preempt(running, now)
    assert pause_job(running.pk, actor="user:1", now=now)[1]
    assert not pause_job(running.pk, actor="user:1", now=now)[1]
    say(attempt, finished("paused"), now=now)
    running.refresh_from_db()
    assert running.state == "paused"


@pytest.mark.parametrize("outcome", ["paused", "failed"])
def test_resuming_meanwhile_returns_job_after_its_pause(
    running: Job, attempt: JobAttempt, now: datetime, outcome: str
) -> None:
    """The engine may have begun to save and stop: the pause completes, and the job keeps its place in the queue."""
    before = running.queued_at
    pause_job(running.pk, actor="user:1", now=now)
    job, changed = resume_job(running.pk, actor="user:2", now=now)
    assert changed and job.state == "pausing"
    assert not resume_job(running.pk, actor="user:2", now=now)[1]
    assert running.reservations.filter(released_at=None).exists()
    why = {} if outcome == "paused" else {"failure_class": "capacity", "message": "it broke"}
    say(attempt, trained(3), saved(attempt, 3), finished(outcome, **why), now=now + timedelta(minutes=1))
    running.refresh_from_db()
    assert (running.state, running.queued_at) == ("queued", before)
    assert schedule_pool(running.pool_id, now=now + timedelta(hours=1)) == 1
    assert running.attempts.latest("n").resume_step == 3
    assert [entry.action for entry in AuditEntry.objects.filter(target=job.pk, action__in=("job.pause", "job.resume"))]


def test_last_wish_during_a_pause_wins(running: Job, attempt: JobAttempt, now: datetime) -> None:
    pause_job(running.pk, actor="user:1", now=now)
    assert resume_job(running.pk, actor="user:1", now=now)[1]
    assert pause_job(running.pk, actor="user:1", now=now)[1]
    say(attempt, finished("paused"), now=now)
    running.refresh_from_db()
    assert running.state == "paused"
    assert [event.type for event in running.events.filter(type__endswith="_requested")] == [
        "resume_requested", "pause_requested",
    ]  # fmt: skip


def test_pauses_toast_undoes_it_while_pausing(running: Job, attempt: JobAttempt, alice: User, now: datetime) -> None:
    browser = Client()
    browser.force_login(alice)
    page = browser.post(reverse("pause_job", args=[running.pk]), follow=True).content.decode()
    assert "Undo" in page and reverse("resume_job", args=[running.pk]) in page
    page = browser.post(reverse("resume_job", args=[running.pk]), follow=True).content.decode()
    assert "resumes by itself when its pause has completed" in page
    say(attempt, finished("paused"), now=now)
    running.refresh_from_db()
    assert running.state == "queued"


def test_cancel_wins_over_pause(running: Job, attempt: JobAttempt, now: datetime) -> None:
    pause_job(running.pk, actor="user:1", now=now)
    cancel_job(running.pk, actor="user:1", now=now)
    with pytest.raises(InvalidState):
        pause_job(running.pk, actor="user:1", now=now)
    say(attempt, finished("paused"), now=now)  # it began to pause before the cancel reached it
    running.refresh_from_db()
    assert running.state == "cancelled"


def test_run_ending_before_its_pause_succeeds(running: Job, attempt: JobAttempt, now: datetime) -> None:
    pause_job(running.pk, actor="user:1", now=now)
    say(attempt, finished("succeeded"), now=now)
    running.refresh_from_db()
    assert running.state == "succeeded"


@pytest.mark.parametrize(
    ("failure_class", "state"), [("platform", "paused"), ("capacity", "paused"), ("user_code", "failed")]
)
def test_fault_while_pausing_pauses_unless_own_fault(
    running: Job, attempt: JobAttempt, now: datetime, failure_class: str, state: str
) -> None:
    pause_job(running.pk, actor="user:1", now=now)
    say(attempt, finished("failed", failure_class=failure_class, message="it broke"), now=now)
    running.refresh_from_db()
    assert running.state == state
    assert running.attempts.get().failure_class == failure_class


def test_replayed_fact_does_not_pause_twice(running: Job, attempt: JobAttempt, now: datetime) -> None:
    pause_job(running.pk, actor="user:1", now=now)
    say(attempt, finished("paused"), now=now)
    batch = {"attempt": 1, "fence": 1, "facts": [{"seq": 1, "at": now, "body": finished("paused")}]}
    assert ingest_facts(attempt, FactBatch.model_validate(batch), now=now) == 1
    assert running.events.filter(to_state="paused").count() == 1


class TestRoutes:
    def test_pause_and_resume_twice_are_202_then_200(
        self, api: Api, running: Job, attempt: JobAttempt, now: datetime
    ) -> None:
        path = f"/jobs/{running.pk}"
        assert [api.post(f"{path}/pause").status_code for _ in range(2)] == [202, 200]
        assert api.get(path).json()["state"] == "pausing"
        say(attempt, finished("paused"), now=now)
        assert api.post(f"{path}/pause").status_code == 200
        assert [api.post(f"{path}/resume").status_code for _ in range(2)] == [202, 200]
        assert api.get(path).json()["state"] == "queued"
        actions = AuditEntry.objects.order_by("seq").values_list("action", flat=True)
        assert [action for action in actions if action.startswith("job.")] == ["job.pause", "job.resume"]

    def test_pausing_job_is_resumed_once(self, api: Api, running: Job) -> None:
        path = f"/jobs/{running.pk}"
        api.post(f"{path}/pause")
        assert [api.post(f"{path}/resume").status_code for _ in range(2)] == [202, 200]
        assert api.get(path).json()["state"] == "pausing"

    def test_waiting_or_ended_job_cannot_be_paused(self, api: Api, job: Job, now: datetime) -> None:
        assert api.post(f"/jobs/{job.pk}/pause").status_code == 409
        cancel_job(job.pk, actor="user:1", now=now)
        assert api.post(f"/jobs/{job.pk}/pause").json()["allowed"] == []
