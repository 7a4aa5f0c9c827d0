"""Pools on several Rays: each job is launched, polled, stopped and read on its pool's Ray, and a Ray that is down or
hangs delays no other."""

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.db import transaction

from backend.jobs.attempts.launcher import Launcher, SubmissionStatus
from backend.jobs.attempts.launching import gather_evidence, launch_attempt, order_for, stop_superseded
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState, ReconcileLease
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.clusters.dashboard import RayUnreachable
from backend.pools.models import ResourcePool, TeamQuota
from backend.reconcile.ray_statuses import query_rays
from backend.reconcile.round import sweep_zombies
from backend.reconcile.views import held_jobs
from engine.spec.control import PoolTerms
from tests.backend.conftest import MakeJob
from tests.backend.fake_ray import FakeRay
from tests.backend.reconcile.conftest import S, World

EAST = "http://east.example.org:8265"


@dataclass(slots=True)
class Meeting(FakeRay):
    """Responds, or fails to, after the other one was queried too."""

    both: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=30))

    def status(self, submission_id: str) -> SubmissionStatus:
        self.both.wait()
        return FakeRay.status(self, submission_id)


@dataclass(slots=True)
class Hanging(FakeRay):
    """Hangs until the test ends."""

    over: threading.Event = field(default_factory=threading.Event)

    def status(self, submission_id: str) -> SubmissionStatus:
        self.over.wait(30)
        raise RayUnreachable("it did not answer in time")


@dataclass
class Rays:
    """The site's own Ray and the one in the east."""

    own: FakeRay = field(default_factory=FakeRay)
    east: FakeRay = field(default_factory=FakeRay)

    def __call__(self, pool: ResourcePool) -> Launcher:
        return self.east if pool.ray_url == EAST else self.own


@pytest.fixture
def east(world: World) -> ResourcePool:
    pool = ResourcePool.objects.create(
        name="east", flavor="H100", capacity=8, ray_url=EAST, labels={"zone": "east"}, device="gpu"
    )
    TeamQuota.objects.create(pool=pool, team=world.job.team, nominal=8)
    return pool


@pytest.fixture
def eastern(world: World, east: ResourcePool, make_job: MakeJob) -> Job:
    """A starting job of that pool."""
    job = make_job()
    Job.objects.filter(pk=job.pk).update(pool=east)
    schedule_pool(east.pk, now=world.now)
    job.refresh_from_db()
    assert job.state == JobState.STARTING
    return job


@pytest.fixture
def rays(world: World) -> Rays:
    both = Rays(own=world.ray)
    world.ray = both  # type: ignore[assignment]  # returns the Ray of a pool, as the original does
    return both


def run(world: World, job: Job, rays: Rays) -> None:
    launch_attempt(job.pk, rays)
    with transaction.atomic():
        change_state(locked_job(job.pk), JobState.RUNNING, actor="engine:1", now=world.now)
    JobAttempt.objects.filter(job=job).update(submitted_at=world.now, last_seen_at=world.now)


def test_attempt_uses_its_pools_ray(world: World, eastern: Job, rays: Rays) -> None:
    run(world, eastern, rays)
    (order,) = rays.east.orders
    assert (order.job, order.pool.labels, order.pool.device) == (eastern.pk, {"zone": "east"}, "gpu")
    assert rays.own.orders == []
    cancel_job(eastern.pk, actor="user:1", now=world.now)
    JobAttempt.objects.filter(job=eastern).update(ended_at=world.now, failure_class="platform")
    stop_superseded(eastern.pk, rays)
    assert (len(rays.east.stopped), rays.own.stopped) == (1, [])
    gather_evidence(eastern.pk, rays)
    assert "last words" in eastern.attempts.get().evidence["log_tail"].replace("\ufffd", "").replace("\0", "")


def test_unreachable_ray_delays_no_job_of_another(world: World, eastern: Job, rays: Rays) -> None:
    world.run()
    run(world, eastern, rays)
    rays.own.away = True
    rays.east.known[eastern.attempts.get().submission_id] = S.FAILED
    world.later(31)
    eastern.refresh_from_db()
    assert (world.state(), eastern.num_attempts) == (("running", 1), 2)


def test_rays_are_queried_in_parallel(world: World, eastern: Job, rays: Rays) -> None:
    world.run()
    run(world, eastern, rays)
    rays.own = own = Meeting()
    rays.east = Meeting(both=own.both, away=True)
    own.known[world.attempt.submission_id] = S.FAILED
    world.later(31)
    eastern.refresh_from_db()
    assert (world.state(), eastern.num_attempts) == (("starting", 2), 1)


def test_hanging_ray_delays_no_other(world: World, eastern: Job, rays: Rays) -> None:
    world.run()
    run(world, eastern, rays)
    over = threading.Event()
    rays.own, rays.east = Hanging(over=over), Hanging(over=over)
    long_ago = world.now + timedelta(seconds=31)
    jobs = list(held_jobs(long_ago, world.now))
    try:
        assert query_rays(jobs, rays, stop_at=time.monotonic() + 0.3) == {} and len(jobs) == 2
    finally:
        over.set()


def test_zombies_are_swept_on_every_reachable_ray(world: World, eastern: Job, rays: Rays) -> None:
    run(world, eastern, rays)
    attempt = eastern.attempts.get()
    JobAttempt.objects.filter(pk=attempt.pk).update(ended_at=world.now)
    rays.own.away = True
    sweep_zombies(rays, lambda: world.now + timedelta(seconds=31))
    assert rays.east.stopped == [attempt.submission_id]


def test_pool_without_terms_runs_on_the_sites_own_ray(world: World, rays: Rays) -> None:
    world.launch()
    assert len(rays.own.orders) == 1 and order_for(world.attempt).pool == PoolTerms()
    assert ReconcileLease.objects.count() == 1
