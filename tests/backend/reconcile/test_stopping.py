"""Attempts that should end: cancelled, paused, or beyond their runtime."""

from datetime import timedelta

from django.db import transaction

from backend.jobs.attempts.launching import launch_attempt
from backend.jobs.control.pausing import pause_job, resume_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState
from tests.backend.reconcile.conftest import S, World, topics


class TestStopping:
    def test_driver_gets_time_to_end_well(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray_says(S.RUNNING)
        world.later(14)
        assert world.ray.stopped == [] and world.state() == ("stopping", 1)

    def test_ray_ends_overdue_job_before_devices_are_free(self, world: World) -> None:
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

    def test_heartbeats_do_not_save_a_driver_past_its_deadline(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray_says(S.RUNNING)
        world.now += timedelta(seconds=21)
        world.round_with_beat(5)
        assert world.ray.stopped == [world.attempt.submission_id]

    def test_unstoppable_submission_does_not_block_job_forever(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray_says(S.RUNNING)
        world.later(121)
        assert world.state() == ("cancelled", 1) and "stop" in topics()

    def test_job_cancelled_before_launch_ends_in_seconds(self, world: World) -> None:
        world.cancel()
        world.later(2)
        assert world.state() == ("stopping", 1)
        world.later(2)
        assert world.state() == ("cancelled", 1)

    def test_driver_that_died_while_stopping_ends_at_once(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray_says(S.FAILED)
        world.later(16)
        assert world.state() == ("cancelled", 1)

    def test_nothing_is_released_without_rays_status(self, world: World) -> None:
        world.run()
        world.cancel()
        world.ray.away = True
        world.later(3_600)
        assert world.state() == ("stopping", 1)


class TestPausing:
    def test_driver_gets_time_to_write_a_checkpoint(self, world: World) -> None:
        world.run()
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.ray_says(S.RUNNING)
        for _ in range(28):
            world.later(10)
        assert world.state() == ("pausing", 1) and world.ray.stopped == []

    def test_overdue_pause_is_stopped_and_shows_lost_steps(self, world: World) -> None:
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

    def test_driver_that_died_while_pausing_ends_after_the_grace(self, world: World) -> None:
        world.run()
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.ray_says(S.FAILED)
        world.later(15)
        assert world.state() == ("pausing", 1), "its last facts may be on their way"
        world.later(10)
        assert world.state() == ("paused", 1)

    def test_nothing_is_released_without_rays_status(self, world: World) -> None:
        world.run()
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.ray.away = True
        world.later(3_600)
        assert world.state() == ("pausing", 1)

    def test_job_paused_before_launch_is_not_launched(self, world: World) -> None:
        pause_job(world.job.pk, actor="user:1", now=world.now)
        launch_attempt(world.job.pk, world.ray)
        world.later(4)
        assert world.state() == ("paused", 1) and world.ray.orders == []

    def test_job_between_two_attempts_pauses_at_once(self, world: World) -> None:
        world.run()
        with transaction.atomic():
            change_state(locked_job(world.job.pk), JobState.RECOVERING, actor="engine:1", now=world.now)
        world.job.attempts.update(ended_at=world.now)
        pause_job(world.job.pk, actor="user:1", now=world.now)
        world.later(0)
        assert world.state() == ("paused", 1)


class TestRuntime:
    def test_job_beyond_its_runtime_is_stopped_and_fails(self, world: World) -> None:
        world.run()
        world.ray_says(S.RUNNING)
        limit = world.job.spec["max_runtime_s"]
        world.works(limit + 1_000)
        world.later(0)
        assert world.state() == ("running", 1), "a moving driver enforces the limit itself"
        world.later(20)
        assert world.state() == ("running", 1), "it gets a grace"
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
        world.works(limit - 100 - 20)
        world.later(20)
        assert world.state() == ("running", 2)
        world.later(31)
        assert world.state() == ("stopping", 2)
