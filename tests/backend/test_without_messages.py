"""Jobs finish even if every Celery message is lost: only beat's ticks run.

The ticks are called as beat calls them; messages to the broker are dropped. Time is moved by hand.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery.app.task import Task

from backend.clock import database_now
from backend.jobs import background
from backend.jobs.attempts import launching
from backend.jobs.attempts.launcher import SubmissionStatus
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.control.pausing import pause_job, resume_job
from backend.jobs.models import Job, JobAttempt, OutboxMessage
from backend.pools.models import ResourcePool
from backend.reconcile.round import reconcile, sweep_zombies
from backend.telemetry.intake.ingest import ingest_facts, note_heartbeat
from engine.spec.control import FactBatch, Heartbeat
from tests.backend.checkpoint_addresses import checkpoint_address
from tests.backend.conftest import MakeJob
from tests.backend.fake_ray import FakeRay

CUSTOM = {"name": "custom", "code": "def prompt(*_): ...\ndef respond(*_): ..."}


@dataclass(slots=True)
class Beat:
    began: datetime
    ray: FakeRay = field(default_factory=FakeRay)
    passed: timedelta = timedelta()
    lost: list[object] = field(default_factory=list)

    def now(self) -> datetime:
        return self.began + self.passed

    def ray_of(self, pool: ResourcePool) -> FakeRay:
        return self.ray

    def tick(self, job: Job, state: str, *, within_s: int = 90) -> None:
        """Ticks until the job reaches the state. Beat's ticks are all that runs."""
        for _ in range(within_s // 5):
            self.passed += timedelta(seconds=5)
            background.validate_waiting()
            background.schedule_all_pools()
            background.dispatch_outbox()
            reconcile(self.ray_of, self.now, lambda: True)
            sweep_zombies(self.ray_of, self.now)
            job.refresh_from_db()
            if job.state == state:
                return
        raise AssertionError(f"{job.state} ({job.message}) and not {state} after {within_s} s")

    def launched(self, job: Job) -> JobAttempt:
        """The attempt, once it is on the engine."""
        for _ in range(12):
            attempt: JobAttempt = job.attempts.latest("n")
            if attempt.submission_id in self.ray.known:
                return attempt
            self.passed += timedelta(seconds=5)
            background.dispatch_outbox()
        raise AssertionError("it was never launched")

    def say(self, attempt: JobAttempt, *bodies: dict[str, Any]) -> None:
        attempt.refresh_from_db()
        first = attempt.acked_seq + 1
        facts = [{"seq": first + index, "at": self.now(), "body": body} for index, body in enumerate(bodies)]
        batch = FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": facts})
        ingest_facts(attempt, batch, now=self.now())


@pytest.fixture
def beat(db: None, monkeypatch: pytest.MonkeyPatch) -> Beat:
    beat = Beat(began=database_now())
    monkeypatch.setattr(background, "publish_now", beat.lost.append)
    monkeypatch.setattr(Task, "apply_async", lambda *args, **kwargs: beat.lost.append(args))
    monkeypatch.setattr(background, "ray_of", beat.ray_of)
    for module in (background, launching):
        monkeypatch.setattr(module, "database_now", beat.now)
    return beat


READY = {"type": "pipeline_ready", "num_replicas": 2, "num_parameters": 1}
SAVED = {
    "type": "checkpoint_saved", "step": 2, "version": 2, "manifest_sha256": "a" * 64,
    "num_bytes": 1,
}  # fmt: skip


def test_a_job_goes_its_whole_way_when_no_message_ever_arrives(beat: Beat, make_job: MakeJob) -> None:
    job = make_job(at=beat.now(), environment=CUSTOM)
    assert job.state == "validating"
    beat.tick(job, "queued")
    beat.tick(job, "starting")
    first = beat.launched(job)
    saved = SAVED | {"uri": checkpoint_address(first, 2)}
    beat.say(first, READY, {"type": "step_trained", "step": 2, "metrics": {}}, saved)
    pause_job(job.pk, actor="user:1", now=beat.now())
    [request] = note_heartbeat(first, Heartbeat(attempt=1, fence=1, step=2), now=beat.now())
    assert request.kind == "pause"
    beat.say(first, {"type": "run_finished", "outcome": "paused"})
    beat.ray.known[first.submission_id] = SubmissionStatus.SUCCEEDED
    resume_job(job.pk, actor="user:1", now=beat.now())
    beat.tick(job, "starting")
    second = beat.launched(job)
    beat.say(second, READY)
    beat.ray.known[second.submission_id] = SubmissionStatus.FAILED  # its node is gone
    beat.tick(job, "starting")
    third = beat.launched(job)
    assert (third.n, third.resume_step) == (3, 2)
    beat.say(third, READY, {"type": "run_finished", "outcome": "succeeded"})
    beat.ray.known[third.submission_id] = SubmissionStatus.SUCCEEDED
    job.refresh_from_db()
    assert job.state == "succeeded" and beat.lost, "messages were sent, and all of them were lost"


def test_cancelled_jobs_stop_and_the_outbox_drains(beat: Beat, make_job: MakeJob) -> None:
    job = make_job(at=beat.now())
    beat.tick(job, "starting")
    attempt = beat.launched(job)
    beat.say(attempt, READY)
    cancel_job(job.pk, actor="user:1", now=beat.now())
    for _ in range(8):  # a driver that ignores requests
        beat.passed += timedelta(seconds=5)
        reconcile(beat.ray_of, beat.now, lambda: True)
    assert attempt.submission_id in beat.ray.stopped
    beat.ray.known[attempt.submission_id] = SubmissionStatus.STOPPED
    beat.tick(job, "cancelled")
    for _ in range(20):
        beat.passed += timedelta(seconds=5)
        background.dispatch_outbox()
    assert not OutboxMessage.objects.exists()


def test_tick_schedules_a_long_unattended_queue(beat: Beat, make_job: MakeJob) -> None:
    job = make_job(at=beat.now())
    OutboxMessage.objects.all().delete()
    for seconds, state in ((20, "queued"), (40, "starting")):
        beat.passed = timedelta(seconds=seconds)
        background.schedule_all_pools()
        job.refresh_from_db()
        assert job.state == state


def test_what_is_not_late_is_left_to_the_messages(beat: Beat, make_job: MakeJob) -> None:
    job = make_job(at=beat.now())
    background.schedule_all_pools()
    background.dispatch_outbox()
    job.refresh_from_db()
    assert job.state == "queued"
