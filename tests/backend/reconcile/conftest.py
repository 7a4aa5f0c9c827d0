"""A job, a Ray that is a dict, and a manual clock."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from django.db import transaction

from backend.jobs.attempts.launcher import SubmissionStatus
from backend.jobs.attempts.launching import launch_attempt
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState, OutboxMessage, ReconcileLease
from backend.jobs.queue.scheduling import schedule_pool
from backend.reconcile.lease import NAME
from backend.reconcile.round import reconcile
from backend.telemetry.intake.ingest import ingest_facts, note_heartbeat
from engine.spec.control import FactBatch, Heartbeat
from tests.backend.conftest import MakeCheckpoint, with_spec_of_before
from tests.backend.fake_ray import FakeRay

S = SubmissionStatus


@dataclass(slots=True)
class World:
    job: Job
    ray: FakeRay
    now: datetime
    make_checkpoint: MakeCheckpoint
    site_is_reachable: bool = True

    @property
    def attempt(self) -> JobAttempt:
        return self.job.attempts.latest("n")

    def later(self, seconds: float) -> None:
        """One round after this time, during which the site was reachable and nothing was decided."""
        ReconcileLease.objects.update(listened_at=self.now + timedelta(seconds=seconds))
        self.after_away(seconds)

    def after_away(self, seconds: float) -> None:
        """One round after this time without a round."""
        self.now += timedelta(seconds=seconds)
        reconcile(self.ray, lambda: self.now, lambda: self.site_is_reachable)
        self.job.refresh_from_db()

    def round_with_beat(self, turns: int | None) -> None:
        """One round; a heartbeat arrives after the round has read the jobs and queried Ray."""
        ReconcileLease.objects.update(listened_at=self.now)
        looks = count()

        def clock() -> datetime:
            if next(looks) == 1:
                self.beat(turns)
            return self.now

        reconcile(self.ray, clock, lambda: self.site_is_reachable)
        self.job.refresh_from_db()
        assert next(looks) > 2, "an action was executed"

    def ray_says(self, status: SubmissionStatus) -> None:
        self.ray.known[self.attempt.submission_id] = status

    def state(self) -> tuple[str, int]:
        return self.job.state, self.job.num_attempts

    def launch(self) -> None:
        launch_attempt(self.job.pk, self.ray)
        JobAttempt.objects.filter(pk=self.attempt.pk).update(submitted_at=self.now)

    def run(self) -> None:
        """Launched, ready, with a fresh heartbeat."""
        self.launch()
        with transaction.atomic():
            change_state(locked_job(self.job.pk), JobState.RUNNING, actor="engine:1", now=self.now)
        self.hear()

    def with_spec(self, **changes: Any) -> None:
        """As another release accepted it."""
        with_spec_of_before(self.job, **changes)

    def lose(self) -> None:
        """The attempt dies before it did anything."""
        self.launch()
        self.ray_says(S.FAILED)
        self.later(31)

    def schedule(self, seconds: float) -> int:
        """One round after this time."""
        self.now += timedelta(seconds=seconds)
        started = schedule_pool(self.job.pool_id, now=self.now)
        self.job.refresh_from_db()
        return started

    def hear(self) -> None:
        JobAttempt.objects.filter(pk=self.attempt.pk).update(last_seen_at=self.now)

    def beat(self, turns: int | None, of: JobAttempt | None = None) -> None:
        attempt = of or self.attempt
        beat = Heartbeat(attempt=attempt.n, fence=attempt.fence, step=0, turns=turns)
        note_heartbeat(attempt, beat, now=self.now)

    def works(self, seconds: float) -> None:
        """A running driver that has just sent a heartbeat."""
        self.now += timedelta(seconds=seconds)
        ReconcileLease.objects.update(listened_at=self.now)
        self.beat(int(self.now.timestamp()))

    def rounds(self, seconds: float, *, turns: Iterable[int | None] | None) -> None:
        """One round every ten seconds, each after a heartbeat with this number of turns; None: without a heartbeat."""
        counts = None if turns is None else iter(turns)
        for _ in range(int(seconds / 10)):
            if counts is not None:
                self.beat(next(counts))
            self.after_away(10)

    def finish(self, outcome: str, **about: str) -> None:
        """The driver's last fact."""
        attempt = self.attempt
        body = {"type": "run_finished", "outcome": outcome} | about
        fact = {"seq": attempt.acked_seq + 1, "at": self.now, "body": body}
        batch = FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": [fact]})
        ingest_facts(attempt, batch, now=self.now)
        self.job.refresh_from_db()

    def cancel(self) -> None:
        cancel_job(self.job.pk, actor="user:1", now=self.now)

    def checkpoint(self, step: int) -> None:
        self.make_checkpoint(self.job, step=step, attempt=self.attempt.n)


@pytest.fixture
def world(job: Job, attempt: JobAttempt, make_checkpoint: MakeCheckpoint, now: datetime) -> World:
    OutboxMessage.objects.all().delete()
    ReconcileLease.objects.create(
        name=NAME, owner="", fence=0, expires_at=datetime.min.replace(tzinfo=UTC), listening_since=now, listened_at=now
    )
    return World(job=job, ray=FakeRay(), now=now, make_checkpoint=make_checkpoint)


def topics() -> list[str]:
    return list(OutboxMessage.objects.order_by("id").values_list("topic", flat=True))
