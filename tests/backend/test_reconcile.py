"""Reconciliation: what Postgres believes against what Ray says. Ray is a dict here; time is moved by hand."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction

from backend.jobs.attempts import begin_attempt
from backend.jobs.launcher import RayUnreachable, SubmissionStatus
from backend.jobs.launching import launch_attempt, stop_superseded
from backend.jobs.lifecycle import advance, locked_job
from backend.jobs.models import Job, JobAttempt, JobRequest, JobState, OutboxMessage, ReconcileLease
from backend.jobs.pausing import pause_job, resume_job
from backend.jobs.scheduling import schedule_pool
from backend.jobs.services import cancel_job
from backend.pools.models import ResourcePool
from backend.reconcile.lease import LeaseLost, prove, reconcile_lease
from backend.reconcile.round import MOST_LOST_A_MINUTE, reconcile, sweep_zombies
from backend.telemetry.ingest import ingest_facts
from engine.spec.control import AttemptOrder, FactBatch
from tests.backend.conftest import MakeCheckpoint
from tests.backend.fake_ray import FakeRay

S = SubmissionStatus


@dataclass(slots=True)
class World:
    job: Job
    ray: FakeRay
    now: datetime
    make_checkpoint: MakeCheckpoint

    @property
    def attempt(self) -> JobAttempt:
        return self.job.attempts.latest("n")

    def later(self, seconds: float) -> None:
        """One round after so long."""
        self.now += timedelta(seconds=seconds)
        reconcile(self.ray, lambda: self.now)
        self.job.refresh_from_db()

    def ray_says(self, status: SubmissionStatus) -> None:
        self.ray.known[self.attempt.submission_id] = status

    def state(self) -> tuple[str, int]:
        return self.job.state, self.job.num_attempts

    def launch(self) -> None:
        launch_attempt(self.job.pk, self.ray)
        JobAttempt.objects.filter(pk=self.attempt.pk).update(submitted_at=self.now)

    def run(self) -> None:
        """Launched, ready, just heard of."""
        self.launch()
        with transaction.atomic():
            advance(locked_job(self.job.pk), JobState.RUNNING, actor="engine:1", now=self.now)
        self.hear()

    def lose(self) -> None:
        """The attempt dies before it did anything."""
        self.launch()
        self.ray_says(S.FAILED)
        self.later(31)

    def schedule(self, seconds: float) -> int:
        """One round after so long."""
        self.now += timedelta(seconds=seconds)
        started = schedule_pool(self.job.pool_id, now=self.now)
        self.job.refresh_from_db()
        return started

    def hear(self) -> None:
        JobAttempt.objects.filter(pk=self.attempt.pk).update(last_seen_at=self.now)

    def finish(self, outcome: str, **about: str) -> None:
        """The driver's last word."""
        attempt = self.attempt
        body = {"type": "run_finished", "outcome": outcome} | about
        fact = {"seq": attempt.acked_seq + 1, "at": self.now, "body": body}
        batch = FactBatch.model_validate({"attempt": attempt.n, "epoch": attempt.epoch, "facts": [fact]})
        ingest_facts(attempt, batch, now=self.now)
        self.job.refresh_from_db()

    def cancel(self) -> None:
        cancel_job(self.job.pk, actor="user:1", now=self.now)

    def checkpoint(self, step: int) -> None:
        self.make_checkpoint(self.job, step=step, attempt=self.attempt.n)


@pytest.fixture
def world(job: Job, attempt: JobAttempt, make_checkpoint: MakeCheckpoint, now: datetime) -> World:
    OutboxMessage.objects.all().delete()
    return World(job=job, ray=FakeRay(), now=now, make_checkpoint=make_checkpoint)


def topics() -> list[str]:
    return list(OutboxMessage.objects.order_by("id").values_list("topic", flat=True))


class TestLaunching:
    def test_the_order_names_everything_a_driver_needs(self, world: World) -> None:
        launch_attempt(world.job.pk, world.ray)
        [order] = world.ray.orders
        assert (order.job, order.attempt, order.epoch, order.resume_from) == (world.job.pk, 1, 1, None)
        assert order.token.startswith("lam_run_") and order.control_url.startswith("http")
        assert world.attempt.submitted_at is not None

    def test_twice_is_as_good_as_once(self, world: World) -> None:
        for _ in range(2):
            launch_attempt(world.job.pk, world.ray)
        assert len(world.ray.orders) == 1

    def test_a_job_cancelled_meanwhile_is_not_launched(self, world: World) -> None:
        world.cancel()
        launch_attempt(world.job.pk, world.ray)
        assert world.ray.orders == []

    def test_while_ray_is_away_the_page_says_so_and_nothing_fails(self, world: World) -> None:
        world.ray.away = True
        for _ in range(2):
            with pytest.raises(RayUnreachable):
                launch_attempt(world.job.pk, world.ray)
        world.later(3_600)
        assert world.state() == ("starting", 1) and "cannot be reached" in world.job.message
        world.ray.away = False
        launch_attempt(world.job.pk, world.ray)
        world.job.refresh_from_db()
        assert "setting it up" in world.job.message

    def test_an_attempt_that_nobody_launches_is_launched_again_but_not_in_doubles(self, world: World) -> None:
        world.later(5)
        assert topics() == []
        for _ in range(3):
            world.later(6)
        assert topics() == ["launch"]

    def test_an_attempt_ended_while_ray_was_asked_is_stopped_again(self, world: World) -> None:
        class Slow(FakeRay):
            def launch(self, order: AttemptOrder, submission_id: str) -> None:
                super().launch(order, submission_id)
                with transaction.atomic():
                    locked = locked_job(order.job)
                    advance(locked, JobState.RECOVERING, actor="reconcile", now=world.now)
                    begin_attempt(locked, now=world.now)
                    OutboxMessage.objects.all().delete()

        slow = Slow()
        first = world.attempt.submission_id
        launch_attempt(world.job.pk, slow)
        assert topics() == ["stop"]
        stop_superseded(world.job.pk, slow)
        assert slow.stopped == [first]


class TestSilence:
    def test_a_driver_that_speaks_is_left_alone(self, world: World) -> None:
        world.run()
        world.ray_says(S.FAILED)  # nobody asks
        for _ in range(5):
            world.later(10)
            world.hear()
        assert world.state() == ("running", 1)

    @pytest.mark.parametrize("status", [S.RUNNING, S.PENDING])
    def test_losing_sight_of_a_job_is_not_its_death(self, world: World, status: SubmissionStatus) -> None:
        world.run()
        world.ray_says(status)
        for _ in range(20):
            world.later(60)
        assert world.state() == ("running", 1)

    def test_ray_away_for_an_hour_changes_nothing(self, world: World) -> None:
        world.run()
        world.ray.away = True
        for _ in range(20):
            world.later(120)
        assert world.state() == ("running", 1)

    @pytest.mark.parametrize("status", [S.FAILED, S.STOPPED, S.MISSING, S.SUCCEEDED])
    def test_a_lost_driver_gets_another_attempt_after_the_grace(self, world: World, status: SubmissionStatus) -> None:
        world.run()
        world.checkpoint(50)
        world.checkpoint(100)
        world.ray_says(status)
        world.later(20)
        assert world.state() == ("running", 1), "its last facts may be on their way"
        world.later(11)
        assert world.state() == ("starting", 2)
        assert (world.attempt.epoch, world.attempt.resume_from) == (2, "file:///store/1-100")
        first = world.job.attempts.get(n=1)
        assert first.outcome == "lost" and "last words" in first.message
        assert first.evidence["log_tail"] == "last words, lam_run_… and Bearer …" and "secret" not in first.message
        assert sorted(topics()) == ["launch", "stop"]
        assert world.job.reservations.filter(released_at=None).count() == 2

    def test_facts_that_come_in_the_grace_count(self, world: World) -> None:
        world.run()
        world.ray_says(S.SUCCEEDED)
        world.later(20)
        fact = {"seq": 1, "at": world.now, "body": {"type": "run_finished", "outcome": "succeeded"}}
        batch = FactBatch.model_validate({"attempt": 1, "epoch": 1, "facts": [fact]})
        ingest_facts(world.attempt, batch, now=world.now)
        world.later(60)
        assert world.state() == ("succeeded", 1)

    def test_the_first_retry_keeps_its_devices_the_later_ones_wait_without_and_the_last_one_fails(
        self, world: World
    ) -> None:
        world.lose()
        assert world.state() == ("starting", 2)
        for n, backoff_s in ((2, 15), (3, 30)):
            queued_at = world.job.queued_at
            world.lose()
            assert world.state() == ("queued", n) and not world.job.reservations.filter(released_at=None).exists()
            assert world.job.not_before == world.now + timedelta(seconds=backoff_s)
            assert world.job.queued_at == queued_at, "it keeps its place"
            assert world.schedule(backoff_s - 1) == 0 and world.schedule(2) == 1
        world.lose()
        assert world.state() == ("failed", 4)
        assert world.job.failure_class == "infrastructure" and "attempt 4 of 4" in world.job.message
        assert not world.job.reservations.filter(released_at=None).exists()
        assert not world.job.attempts.filter(ended_at=None).exists()

    def test_an_attempt_that_got_further_begins_the_count_anew(self, world: World) -> None:
        world.lose()
        world.run()
        world.checkpoint(10)
        world.ray_says(S.FAILED)
        world.later(31)
        assert world.state() == ("starting", 3) and world.attempt.resume_step == 10

    def test_what_was_wanted_of_a_lost_attempt_is_not_wanted_of_the_next(self, world: World) -> None:
        world.run()
        JobRequest.objects.create(id="req_1", job=world.job, kind="resize", data={"replicas": 1}, created_at=world.now)
        world.ray_says(S.FAILED)
        world.later(31)
        assert world.state() == ("starting", 2)
        assert not world.job.requests.filter(acknowledged_at=None).exists()

    def test_the_newest_checkpoint_is_the_later_attempts(self, world: World) -> None:
        world.run()
        world.checkpoint(100)
        world.ray_says(S.FAILED)
        world.later(31)
        world.run()
        world.checkpoint(40)  # it had to fall back to an earlier one
        world.ray_says(S.FAILED)
        world.later(31)
        assert world.attempt.resume_from == "file:///store/2-40"

    def test_a_driver_that_gave_up_is_followed_by_another(self, world: World) -> None:
        world.run()
        body = {"type": "run_finished", "outcome": "failed", "failure_class": "infrastructure", "message": "node lost"}
        batch = FactBatch.model_validate(
            {"attempt": 1, "epoch": 1, "facts": [{"seq": 1, "at": world.now, "body": body}]}
        )
        ingest_facts(world.attempt, batch, now=world.now)
        world.later(3)
        assert world.state() == ("starting", 2) and "node lost" in world.job.message


class TestStopping:
    def test_a_driver_gets_its_time_to_end_well(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray_says(S.RUNNING)
        world.later(14)
        assert world.ray.stopped == [] and world.state() == ("stopping", 1)

    def test_past_the_deadline_ray_ends_it_and_only_then_are_its_devices_free(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray_says(S.RUNNING)
        world.later(21)
        assert world.ray.stopped == [world.attempt.submission_id]
        assert world.state() == ("stopping", 1) and world.job.reservations.filter(released_at=None).exists()
        world.ray_says(S.STOPPED)
        world.later(3)
        assert world.state() == ("cancelled", 1)
        assert not world.job.reservations.filter(released_at=None).exists()

    def test_a_submission_that_cannot_be_stopped_does_not_hold_the_job_for_ever(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray_says(S.RUNNING)
        world.later(121)
        assert world.state() == ("cancelled", 1) and "stop" in topics()

    def test_a_job_cancelled_before_its_launch_is_gone_in_seconds(self, world: World) -> None:
        world.cancel()
        world.later(2)
        assert world.state() == ("stopping", 1)
        world.later(2)
        assert world.state() == ("cancelled", 1)

    def test_a_driver_that_died_while_stopping_is_not_waited_for(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray_says(S.FAILED)
        world.later(16)
        assert world.state() == ("cancelled", 1)

    def test_without_rays_word_nothing_is_let_go(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray.away = True
        world.later(3_600)
        assert world.state() == ("stopping", 1)


class TestPausing:
    def test_a_driver_gets_its_time_to_write_a_checkpoint(self, world: World) -> None:
        world.run()
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.ray_says(S.RUNNING)
        for _ in range(28):
            world.later(10)
        assert world.state() == ("pausing", 1) and world.ray.stopped == []

    def test_past_the_deadline_it_is_stopped_and_lands_with_what_is_lost(self, world: World) -> None:
        world.run()
        world.checkpoint(40)
        Job.objects.filter(pk=world.job.pk).update(step=43)
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.ray_says(S.RUNNING)
        world.later(301)
        assert world.ray.stopped == [world.attempt.submission_id] and world.state() == ("pausing", 1)
        world.ray_says(S.STOPPED)
        world.later(3)
        assert world.state() == ("paused", 1) and "3 steps will be trained again" in world.job.message
        landed = world.job.events.get(to_state="paused")
        assert (landed.data["resume_step"], landed.data["lost_steps"]) == (40, 3)
        assert not world.job.reservations.filter(released_at=None).exists()

    def test_a_driver_that_died_while_pausing_lands_after_the_grace(self, world: World) -> None:
        world.run()
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.ray_says(S.FAILED)
        world.later(15)
        assert world.state() == ("pausing", 1), "its last facts may be on their way"
        world.later(10)
        assert world.state() == ("paused", 1)

    def test_without_rays_word_nothing_is_let_go(self, world: World) -> None:
        world.run()
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.ray.away = True
        world.later(3_600)
        assert world.state() == ("pausing", 1)

    def test_a_job_paused_before_its_launch_lands_in_seconds_and_is_not_launched(self, world: World) -> None:
        pause_job(world.job.pk, actor="user:1", now=world.now)
        launch_attempt(world.job.pk, world.ray)
        world.later(4)
        assert world.state() == ("paused", 1) and world.ray.orders == []

    def test_a_job_between_two_attempts_lands_at_once(self, world: World) -> None:
        world.run()
        with transaction.atomic():
            advance(locked_job(world.job.pk), JobState.RECOVERING, actor="engine:1", now=world.now)
        world.job.attempts.update(ended_at=world.now)
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.later(0)
        assert world.state() == ("paused", 1)


class TestStarting:
    def test_a_start_that_hangs_is_stopped_and_waits_for_its_next_try_without_devices(self, world: World) -> None:
        world.launch()
        world.ray_says(S.RUNNING)
        for _ in range(15):
            world.later(60)
            world.hear()
        assert world.state() == ("starting", 1) and world.ray.stopped == []
        world.later(1)
        assert world.ray.stopped == [world.attempt.submission_id] and world.state() == ("starting", 1)
        world.ray_says(S.STOPPED)
        world.later(3)
        assert world.state() == ("queued", 1) and world.job.not_before == world.now + timedelta(seconds=30)
        first = world.job.attempts.get()
        assert (first.outcome, first.failure_class) == ("start_failed", "capacity")

    def test_a_cluster_without_room_is_waited_for_ever_longer_and_not_for_ever(self, world: World) -> None:
        waits = []
        for n in range(1, 6):
            assert world.state() == ("starting", n)
            world.launch()
            world.finish("failed", failure_class="capacity", message="no room")
            world.later(3)
            if n < 5:
                assert world.job.not_before is not None
                waits.append((world.job.not_before - world.now).total_seconds())
                assert world.schedule(waits[-1]) == 1
        assert waits == [30, 60, 120, 240]
        assert world.state() == ("failed", 5) and world.job.failure_class == "capacity"


class TestRuntime:
    def test_a_job_beyond_its_runtime_is_asked_then_stopped_and_failed(self, world: World) -> None:
        world.run()
        world.ray_says(S.RUNNING)
        limit = world.job.spec["max_runtime_s"]
        world.later(limit + 20)
        assert world.state() == ("running", 1), "the driver watches the time itself and gets a grace"
        world.hear()
        world.later(11)
        assert world.state() == ("stopping", 1) and world.job.requests.get().kind == "cancel"
        world.later(21)
        assert world.ray.stopped
        world.ray_says(S.STOPPED)
        world.later(3)
        assert (world.job.state, world.job.failure_class, world.job.reason) == ("failed", "timeout", "max_runtime")
        assert "max_runtime_s" in world.job.message

    def test_waiting_for_ray_is_not_running(self, world: World) -> None:
        world.later(10 * 86_400)
        assert world.state() == ("starting", 1)

    def test_time_in_a_pause_is_not_runtime(self, world: World) -> None:
        world.run()
        limit = world.job.max_runtime_s
        world.now += timedelta(seconds=100)
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.finish("paused")
        assert world.state() == ("paused", 1)
        world.now += timedelta(days=3)
        resume_job(world.job.pk, actor="user:1", now=world.now)
        assert world.schedule(0) == 1
        world.run()
        assert world.ray.orders[-1].runtime_left_s == limit - 100
        world.ray_says(S.RUNNING)
        world.later(limit - 100)
        assert world.state() == ("running", 2)
        world.later(31)
        assert world.state() == ("stopping", 2)


class TestSafety:
    def test_the_brake(self, world: World, pool: ResourcePool, make_job: object) -> None:
        """Ray came back without its memory: every submission is missing."""
        pool.capacity = 1_000
        pool.save()
        pool.quotas.filter(team=world.job.team).update(nominal=500)
        for _ in range(MOST_LOST_A_MINUTE + 4):
            make_job(devices=2)  # type: ignore[operator]
        schedule_pool(pool.pk, now=world.now)
        JobAttempt.objects.update(submitted_at=world.now)
        world.later(31)
        assert JobAttempt.objects.filter(outcome="lost").count() == MOST_LOST_A_MINUTE
        world.later(30)
        assert JobAttempt.objects.filter(outcome="lost").count() == MOST_LOST_A_MINUTE
        JobAttempt.objects.filter(ended_at=None, n=2).update(submitted_at=world.now + timedelta(seconds=31))
        world.later(31)
        assert JobAttempt.objects.filter(outcome="lost").count() == MOST_LOST_A_MINUTE + 5

    def test_a_word_that_comes_between_judgement_and_action_saves_the_attempt(self, world: World) -> None:
        world.run()

        class Slow(FakeRay):
            def log_tail(self, submission_id: str, max_chars: int) -> str:
                world.hear()
                return ""

        world.ray = Slow(known={world.attempt.submission_id: S.FAILED})
        world.later(31)
        assert world.state() == ("running", 1)

    def test_zombies_are_stopped_and_strangers_are_not(self, world: World) -> None:
        world.run()
        first = world.attempt.submission_id
        world.ray_says(S.MISSING)
        world.later(31)
        world.launch()
        world.ray.known |= {first: S.RUNNING, "job_of_another_laminar-1-1": S.RUNNING}
        sweep_zombies(world.ray, lambda: world.now + timedelta(seconds=10))
        assert world.ray.stopped == []
        sweep_zombies(world.ray, lambda: world.now + timedelta(seconds=31))
        assert world.ray.stopped == [first]

    def test_finished_jobs_are_never_touched_again(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray_says(S.STOPPED)
        world.later(21)
        before = list(world.job.events.values())
        world.later(3_600)
        assert list(world.job.events.values()) == before


@pytest.fixture
def held_elsewhere() -> Iterator[None]:
    """Somebody else is in the middle of a round."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with reconcile_lease():
            entered.set()
            leave.wait(20)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(10)
    yield
    leave.set()
    thread.join()


@pytest.mark.django_db(transaction=True)
class TestLease:
    def test_one_round_at_a_time(self, world: World, held_elsewhere: None) -> None:
        world.run()
        world.ray_says(S.FAILED)
        world.later(60)
        assert world.state() == ("running", 1)

    def test_a_lease_that_was_let_go_is_taken_at_once_with_a_new_epoch(self, db: None) -> None:
        epochs = []
        for _ in range(3):
            with reconcile_lease() as lease:
                assert lease is not None
                epochs.append(lease.epoch)
        assert epochs == [1, 2, 3]

    def test_a_reconciler_that_froze_beyond_its_lease_writes_nothing(self, world: World) -> None:
        world.run()

        class Freezing(FakeRay):
            def log_tail(self, submission_id: str, max_chars: int) -> str:
                ReconcileLease.objects.update(expires_at=world.now - timedelta(days=1))  # thawed long after
                return ""

        world.ray = Freezing(known={world.attempt.submission_id: S.FAILED})
        with pytest.raises(LeaseLost):
            world.later(31)
        world.job.refresh_from_db()
        assert world.state() == ("running", 1)

    def test_the_successor_fences_the_predecessor(self, db: None) -> None:
        with reconcile_lease() as old:
            assert old is not None
            ReconcileLease.objects.update(expires_at=datetime(2020, 1, 1, tzinfo=None).astimezone())
            with reconcile_lease() as new:
                assert new is not None and new.epoch == old.epoch + 1
                with transaction.atomic(), pytest.raises(LeaseLost):
                    prove(old)
                with transaction.atomic():
                    prove(new)
