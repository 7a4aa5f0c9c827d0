"""An attempt is launched once; one that cannot start is retried later."""

from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar

import pytest
from django.db import transaction

from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.attempts.launching import launch_attempt, order_for, stop_superseded
from backend.jobs.control.cancelling import kill_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import JobAttempt, JobState, OutboxMessage
from backend.pools.clusters.dashboard import RayUnreachable
from engine.spec.control import AttemptOrder
from tests.backend.fake_ray import FakeRay
from tests.backend.reconcile.conftest import S, World, topics


class TestLaunching:
    def test_order_has_everything_a_driver_needs(self, world: World) -> None:
        launch_attempt(world.job.pk, world.ray)
        [order] = world.ray.orders
        assert (order.job, order.attempt, order.fence, order.resume_from) == (world.job.pk, 1, 1, None)
        assert order.token.startswith("lam_run_") and order.control_url.startswith("http")
        assert world.attempt.submitted_at is not None

    def test_launch_is_idempotent(self, world: World) -> None:
        for _ in range(2):
            launch_attempt(world.job.pk, world.ray)
        assert len(world.ray.orders) == 1

    def test_cancelled_job_is_not_launched(self, world: World) -> None:
        world.cancel()
        launch_attempt(world.job.pk, world.ray)
        assert world.ray.orders == []

    def test_unreachable_ray_sets_a_message_and_fails_nothing(self, world: World) -> None:
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

    def test_overdue_launch_is_repeated_once(self, world: World) -> None:
        world.later(5)
        assert topics() == []
        for _ in range(3):
            world.later(6)
        assert topics() == ["launch"]

    def test_attempt_ended_during_launch_is_stopped(self, world: World) -> None:
        class Slow(FakeRay):
            def launch(self, order: AttemptOrder, submission_id: str) -> None:
                super().launch(order, submission_id)
                with transaction.atomic():
                    locked = locked_job(order.job)
                    change_state(locked, JobState.RECOVERING, actor="reconcile", now=world.now)
                    begin_attempt(locked, now=world.now)
                    OutboxMessage.objects.all().delete()

        slow = Slow()
        first = world.attempt.submission_id
        launch_attempt(world.job.pk, slow)
        assert topics() == ["stop"]
        stop_superseded(world.job.pk, slow)
        assert slow.stopped == [first]

    def test_stop_of_a_killed_job_is_recorded_once(self, world: World) -> None:
        world.run()
        kill_job(world.job.pk, actor="user:1", now=world.now)
        for _ in range(2):
            stop_superseded(world.job.pk, world.ray)
        stops = world.job.events.filter(type="cluster_stopped")
        assert [event.message for event in stops] == ["Sent a stop request for attempt 1 to the cluster."]

    def test_stop_of_another_job_is_not_recorded(self, world: World) -> None:
        world.run()
        world.cancel()
        stop_superseded(world.job.pk, world.ray)
        assert not world.job.events.filter(type="cluster_stopped").exists()


class TestStarting:
    def test_hung_start_is_stopped_and_releases_its_devices(self, world: World) -> None:
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

    def test_full_cluster_is_retried_with_backoff_then_fails(self, world: World) -> None:
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


class TestSpecsOfOtherReleases:
    """Accepted under fewer rules about combinations of settings."""

    NO_EFFECT: ClassVar = {"trainer": {"zero_stage": 3}, "resources": {"devices_per_replica": 1}}

    def test_now_refused_setting_stops_no_accepted_job(self, world: World) -> None:
        world.with_spec(**self.NO_EFFECT)
        launch_attempt(world.job.pk, world.ray)
        [order] = world.ray.orders
        assert order.spec.trainer.zero_stage == 3
        assert AttemptOrder.read(order.model_dump_json().encode()) == order

    def test_unreadable_spec_fails_its_job_and_frees_devices(self, world: World) -> None:
        world.with_spec(trainer={"backend": "abacus"})
        launch_attempt(world.job.pk, world.ray)
        assert world.ray.orders == []
        world.job.refresh_from_db()
        assert world.state()[0] == "failed" and world.job.failure_class == "config"
        assert "Submit the job again" in world.job.message and world.attempt.ended_at is not None
        assert not world.job.reservations.filter(released_at=None).exists()
        launch_attempt(world.job.pk, world.ray)  # again, from a duplicate message
        assert world.state()[0] == "failed"

    def test_stopping_job_with_unreadable_spec_is_left_alone(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.with_spec(trainer={"backend": "abacus"})

        def cancelled_first(attempt: JobAttempt, *, avoiding: Sequence[str]) -> AttemptOrder:
            world.cancel()
            return order_for(attempt, avoiding=avoiding)

        monkeypatch.setattr("backend.jobs.attempts.launching.order_for", cancelled_first)
        launch_attempt(world.job.pk, world.ray)
        world.job.refresh_from_db()
        assert world.state()[0] in ("stopping", "cancelled") and world.job.failure_class == ""
