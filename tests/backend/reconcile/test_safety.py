"""What reconciliation must never do, whatever Ray reports and however many reconcilers run."""

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction

from backend.jobs.models import JobAttempt, ReconcileLease
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.models import ResourcePool
from backend.reconcile.lease import LeaseLost, prove, reconcile_lease
from backend.reconcile.round import MOST_LOST_A_MINUTE, sweep_zombies
from tests.backend.fake_ray import FakeRay
from tests.backend.reconcile.conftest import S, World


class TestSafety:
    def test_losses_per_minute_are_limited(self, world: World, pool: ResourcePool, make_job: object) -> None:
        """Ray restarted without its state: every submission is missing."""
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

    def test_heartbeat_between_verdict_and_action_saves_attempt(self, world: World) -> None:
        world.run()

        class Slow(FakeRay):
            def log_tail(self, submission_id: str, max_chars: int) -> str:
                world.hear()
                return ""

        world.ray = Slow(known={world.attempt.submission_id: S.FAILED})
        world.later(31)
        assert world.state() == ("running", 1)

    def test_zombies_are_stopped_and_foreign_jobs_are_not(self, world: World) -> None:
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
    """Another process is in the middle of a round."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with reconcile_lease():
            entered.set()
            leave.wait(120)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(60)
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

    def test_released_lease_is_taken_at_once_with_new_fence(self, db: None) -> None:
        fences = []
        for _ in range(3):
            with reconcile_lease() as lease:
                assert lease is not None
                fences.append(lease.fence)
        assert fences == [1, 2, 3]

    def test_reconciler_frozen_beyond_its_lease_writes_nothing(self, world: World) -> None:
        world.run()

        class Freezing(FakeRay):
            def log_tail(self, submission_id: str, max_chars: int) -> str:
                ReconcileLease.objects.update(expires_at=world.now - timedelta(days=1))  # resumed long after
                return ""

        world.ray = Freezing(known={world.attempt.submission_id: S.FAILED})
        with pytest.raises(LeaseLost):
            world.later(31)
        world.job.refresh_from_db()
        assert world.state() == ("running", 1)

    def test_new_lease_fences_the_old_one(self, db: None) -> None:
        with reconcile_lease() as old:
            assert old is not None
            ReconcileLease.objects.update(expires_at=datetime(2020, 1, 1, tzinfo=None).astimezone())
            with reconcile_lease() as new:
                assert new is not None and new.fence == old.fence + 1
                with transaction.atomic(), pytest.raises(LeaseLost):
                    prove(old)
                with transaction.atomic():
                    prove(new)
