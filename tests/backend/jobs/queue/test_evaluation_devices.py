"""An evaluation holds its replicas' devices and no others, from the queue to the bill. The database refuses a trainer
reservation for it, and refuses a training job without one."""

from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum

from backend.accounts.models import Team
from backend.jobs.lifecycle import change_state
from backend.jobs.models import HOLDING_STATES, Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.budgets import budget_states
from backend.pools.models import Reservation, ResourcePool
from backend.usage.report import usage_of_job
from backend.usage.split import Kinds
from engine.spec.job import JobSpec
from tests.backend.conftest import CAPACITY, NOW, MakeJob
from tests.backend.jobs.test_guards import refused, refused_at_commit
from tests.backend.telemetry.test_ingest import FINISHED, READY, Driver

pytestmark = pytest.mark.django_db

SECOND = 10**6


@pytest.fixture
def make_evaluation(make_job: MakeJob) -> MakeJob:
    """`devices`: of its replicas only; nothing is added for a trainer."""

    def make(*, devices: int = 1, **changes: Any) -> Job:
        return make_job(training={"steps": 0}, rollout={"replicas": devices}, **changes)

    return make


@pytest.fixture
def evaluation(make_evaluation: MakeJob, pool: ResourcePool) -> Job:
    """A running evaluation on one device."""
    job = make_evaluation(devices=1)
    assert schedule_pool(pool.pk, now=NOW) == 1
    job.refresh_from_db()
    return job


def held(job: Job) -> dict[str, int]:
    return dict(job.reservations.filter(released_at__isnull=True).values_list("role", "devices"))


def reserve(job: Job, role: str, devices: int = 1) -> tuple[str, Any, Any, Any, str, int]:
    text = (
        "INSERT INTO pools_reservation (job_id, attempt, pool_id, team_id, role, slot, devices, borrowed, created_at) "
        "VALUES (%s, 1, %s, %s, %s, 0, %s, 0, now())"
    )
    return text, job.pk, job.pool_id, job.team_id, role, devices


class TestInTheLine:
    def test_evaluation_starts_where_its_replicas_just_fit(
        self, make_job: MakeJob, make_evaluation: MakeJob, pool: ResourcePool
    ) -> None:
        training, evaluation = make_job(devices=CAPACITY - 2), make_evaluation(devices=2)
        assert (evaluation.devices, evaluation.min_devices) == (2, 2)
        assert schedule_pool(pool.pk, now=NOW) == 2
        assert held(training) == {"trainer": 1, "rollout": CAPACITY - 3}
        assert held(evaluation) == {"rollout": 2}

    def test_evaluation_starts_with_all_replicas_or_not_at_all(
        self, make_job: MakeJob, make_evaluation: MakeJob, pool: ResourcePool
    ) -> None:
        make_job(devices=CAPACITY - 2)
        waiting = make_evaluation(devices=3, at=NOW + timedelta(seconds=1))
        assert schedule_pool(pool.pk, now=NOW) == 1
        waiting.refresh_from_db()
        assert (waiting.state, held(waiting)) == ("queued", {})

    @pytest.mark.parametrize("trainer_devices", [0, 1, CAPACITY])
    def test_trainer_devices_of_its_spec_are_not_held(
        self, make_job: MakeJob, pool: ResourcePool, trainer_devices: int
    ) -> None:
        job = make_job(training={"steps": 0}, rollout={"replicas": 3}, resources={"trainer_devices": trainer_devices})
        assert job.devices == 3 and schedule_pool(pool.pk, now=NOW) == 1 and held(job) == {"rollout": 3}

    def test_elastic_replicas_come_with_free_devices(self, make_evaluation: MakeJob, pool: ResourcePool) -> None:
        job = make_evaluation(devices=3, placement={"min_replicas": 1})
        assert (job.devices, job.min_devices) == (3, 1)
        schedule_pool(pool.pk, now=NOW)
        roles = job.reservations.order_by("role", "slot").values_list("role", "devices")
        assert list(roles) == [("elastic", 1), ("elastic", 1), ("rollout", 1)]

    def test_borrowed_devices_are_counted_as_such(
        self, make_evaluation: MakeJob, pool: ResourcePool, team: Team
    ) -> None:
        team.quotas.update(nominal=1)
        job = make_evaluation(devices=3, placement={"preemptible": True})
        schedule_pool(pool.pk, now=NOW)
        assert job.reservations.get().borrowed == 2

    def test_mix_of_both_kinds_oversells_nothing(
        self, make_job: MakeJob, make_evaluation: MakeJob, pool: ResourcePool
    ) -> None:
        """Every round starts what fits, and a running job ends before the next one."""
        jobs = [
            make(devices=devices, at=NOW + timedelta(seconds=n))
            for n, (make, devices) in enumerate(
                [(make_evaluation, 3), (make_job, 4), (make_evaluation, 1), (make_evaluation, 8), (make_job, 8)] * 2
            )
        ]
        for round_ in count():
            schedule_pool(pool.pk, now=NOW + timedelta(minutes=round_))
            live = Reservation.objects.filter(released_at__isnull=True)
            assert (live.aggregate(all=Sum("devices"))["all"] or 0) <= CAPACITY
            running = list(Job.objects.filter(state__in=HOLDING_STATES).order_by("queued_at"))
            for job in running:
                assert sum(held(job).values()) == job.devices and ("trainer" in held(job)) == bool(job.steps)
            if not running:
                break
            for state in (JobState.STOPPING, JobState.SUCCEEDED):
                change_state(running[0], state, actor="engine:1", now=NOW + timedelta(minutes=round_))
        assert {Job.objects.get(pk=job.pk).state for job in jobs} == {"succeeded"}


class TestTheBill:
    def test_evaluation_pays_only_for_its_replicas(self, make_evaluation: MakeJob, pool: ResourcePool) -> None:
        job = make_evaluation(devices=2)
        schedule_pool(pool.pk, now=NOW)
        Driver(job.attempts.get()).say(READY, FINISHED)
        [reservation] = job.reservations.all()
        Reservation.objects.filter(pk=reservation.pk).update(released_at=NOW + timedelta(seconds=60))
        job.refresh_from_db()
        spent = sum((row.kinds for row in usage_of_job(job, now=NOW + timedelta(hours=1))), Kinds())
        assert spent.held == 2 * 60 * SECOND

    def test_budget_covers_the_cost_of_its_replicas(
        self, make_evaluation: MakeJob, pool: ResourcePool, team: Team
    ) -> None:
        """Replicas that joined later end with the job, which began before them."""
        job = make_evaluation(devices=3, placement={"min_replicas": 1}, max_runtime_s=600)
        schedule_pool(pool.pk, now=NOW)
        later = NOW + timedelta(seconds=100)
        job.reservations.filter(role="elastic").update(created_at=later)
        assert budget_states([team.pk], now=later)[team.pk].committed == 3 * 500


class TestTheDatabase:
    def test_evaluation_holds_devices_iff_its_state_does(self, evaluation: Job, make_evaluation: MakeJob) -> None:
        release = "UPDATE pools_reservation SET released_at = created_at WHERE job_id = %s"
        assert refused_at_commit(release, evaluation.pk)
        assert refused_at_commit("DELETE FROM pools_reservation WHERE job_id = %s", evaluation.pk)
        waiting = make_evaluation(devices=1)
        assert refused_at_commit(*reserve(waiting, "rollout"))

    def test_evaluation_has_no_trainer(self, evaluation: Job) -> None:
        assert refused_at_commit(*reserve(evaluation, "trainer"))

    def test_training_job_has_a_trainer(self, make_job: MakeJob, pool: ResourcePool) -> None:
        job = make_job(devices=3)
        schedule_pool(pool.pk, now=NOW)
        gone = "DELETE FROM pools_reservation WHERE job_id = %s AND role = 'trainer'"
        assert refused_at_commit(gone, job.pk)
        assert refused("UPDATE pools_reservation SET devices = 0 WHERE job_id = %s AND role = 'trainer'", job.pk)
        passed_off = "UPDATE jobs_job SET steps = 0 WHERE id = %s"
        assert refused_at_commit(f"{passed_off}; {gone}", job.pk, job.pk), "its spec has training steps"

    def test_elastic_replicas_need_the_initial_replicas(self, make_evaluation: MakeJob, pool: ResourcePool) -> None:
        job = make_evaluation(devices=3, placement={"min_replicas": 1})
        schedule_pool(pool.pk, now=NOW)
        gone = "UPDATE pools_reservation SET released_at = created_at WHERE job_id = %s AND role = 'rollout'"
        assert not refused_at_commit(gone.replace("'rollout'", "'elastic'"), job.pk)
        Reservation.objects.filter(job=job, role="elastic").update(released_at=None)
        with connection.cursor() as db:  # disables the other guard, which would refuse it as well
            db.execute("SET CONSTRAINTS ALL IMMEDIATE")
            db.execute("ALTER TABLE pools_reservation DISABLE TRIGGER laminar_reservation_held_iff")
            db.execute("SET CONSTRAINTS ALL DEFERRED")
        assert refused_at_commit(gone, job.pk)


def test_training_job_requests_a_trainer() -> None:
    with pytest.raises(ValueError, match=r"resources.trainer_devices must be at least 1 unless training.steps is 0"):
        JobSpec.model_validate({"name": "x", "resources": {"trainer_devices": 0}})
