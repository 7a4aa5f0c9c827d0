"""Drained hosts: nothing new is placed there, remaining devices are counted, and it is logged and reversible."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from backend.accounts.models import User
from backend.accounts.operators.acting import Operator
from backend.accounts.signing_in.chains import SITE
from backend.audit.models import AuditEntry
from backend.errors import InvalidState
from backend.jobs.attempts.launching import launch_attempt
from backend.jobs.control.pausing import requeue
from backend.jobs.models import Job, JobAttempt, JobState, OutboxMessage
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.clusters.drains import HostsChosenById, HostUnknown, devices_out, drain, give_back
from backend.pools.clusters.probes import RayHost, note_found, probe_of
from backend.pools.decision.decide import decide
from backend.pools.decision.views import WaitingReason
from backend.pools.models import DrainedHost, ResourcePool
from engine.spec.labels import is_chosen
from tests.backend.conftest import Api, MakeJob
from tests.backend.fake_ray import FakeRay
from tests.backend.pools.decision.decide_world import job as waiting
from tests.backend.pools.decision.decide_world import pool as pool_view


def host(name: str, *, gpus: float = 4, **labels: str) -> RayHost:
    return RayHost(id=f"id-of-{name}", name=name, labels=labels, cpus=8, gpus=gpus)


TWO = [host("a"), host("b")]


@pytest.fixture
def operator(alice: User) -> Operator:
    alice.is_staff = True
    alice.save()
    return Operator.acting(alice)


@pytest.fixture
def seen(pool: ResourcePool, now: datetime) -> ResourcePool:
    """Eight devices on two hosts."""
    note_found([pool], TWO, now=now)
    return pool


def test_nothing_starts_on_drained_devices_and_large_job_waits() -> None:
    view = replace(pool_view(waiting("one", devices=4), waiting("two", devices=4)), drained=4)
    assert decide(view).admitted == ("one",)
    large = decide(replace(pool_view(waiting("large", devices=8)), drained=4))
    assert large.reasons == {"large": WaitingReason.POOL_FULL}, "it fits once the host is back"


def test_a_drained_host_counts_no_more_until_it_is_given_back(
    seen: ResourcePool, operator: Operator, now: datetime
) -> None:
    for _ in range(2):
        drain(operator, seen, "a", reason="a fan", now=now)
    assert devices_out(seen) == 4
    OutboxMessage.objects.all().delete()
    assert give_back(operator, seen, "a", now=now) and not give_back(operator, seen, "a", now=now)
    assert devices_out(seen) == 0
    assert OutboxMessage.objects.filter(topic="schedule", key=seen.pk).exists(), "a round is scheduled"
    entries = AuditEntry.objects.filter(team_id=SITE).order_by("seq")
    assert [(each.action, each.target) for each in entries] == [("host.drained", "a"), ("host.given_back", "a")]
    assert entries[0].data == {"ray_url": "", "reason": "a fan"}


def test_every_pool_with_the_host_avoids_it(seen: ResourcePool, operator: Operator, now: datetime) -> None:
    beside = ResourcePool.objects.create(name="beside", flavor="x", capacity=4, labels={"zone": "b"})
    half = ResourcePool.objects.create(name="half", flavor="x", capacity=8)
    east = ResourcePool.objects.create(name="east", flavor="x", capacity=8, ray_url="http://east.example.org:8265")
    hosts = [host("a", zone="a"), host("b", zone="b")]
    note_found([seen, half], hosts, now=now)
    note_found([beside], hosts, now=now)
    note_found([east], hosts, now=now)
    drain(operator, seen, "a", reason="", now=now)
    assert [devices_out(each) for each in (seen, half, beside, east)] == [6, 6, 0, 0], "4 of 16 promised are left"


def test_new_attempt_avoids_drained_host_by_current_id(
    seen: ResourcePool, attempt: JobAttempt, operator: Operator, now: datetime
) -> None:
    drain(operator, seen, "a", reason="", now=now)
    begun_again = replace(TWO[0], id="id-of-its-next-life")
    ray = FakeRay(nodes=[begun_again, TWO[1]])
    JobAttempt.objects.update(submitted_at=None)
    launch_attempt(attempt.job_id, ray)
    [order] = ray.orders
    chosen = [each.id for each in ray.nodes if is_chosen({"ray.io/node-id": each.id}, order.pool.labels)]
    assert chosen == ["id-of-b"]


def test_a_drained_host_that_is_gone_is_no_gap_and_stays_out(
    seen: ResourcePool, operator: Operator, now: datetime
) -> None:
    drain(operator, seen, "a", reason="", now=now)
    note_found([seen], TWO[1:], now=now + timedelta(minutes=1))
    probe = probe_of(seen)
    assert probe is not None and probe.failing_since is None
    assert devices_out(seen) == 4
    note_found([seen], [], now=now + timedelta(minutes=2))
    probe = probe_of(seen)
    assert probe is not None and probe.failing_since is not None, "the other one was not drained"


def test_what_cannot_be_drained_is_refused(seen: ResourcePool, operator: Operator, now: datetime) -> None:
    with pytest.raises(HostUnknown):
        drain(operator, seen, "c", reason="", now=now)
    ResourcePool.objects.filter(pk=seen.pk).update(labels={"ray.io/node-id": "id-of-a"})
    seen.refresh_from_db()
    with pytest.raises(HostsChosenById):
        drain(operator, seen, "a", reason="", now=now)
    assert not DrainedHost.objects.exists() and not AuditEntry.objects.exists()


def states_of(jobs: Sequence[Job]) -> set[str]:
    return set(Job.objects.filter(pk__in=[each.pk for each in jobs]).values_list("state", flat=True))


def test_drained_pool_serves_its_rest_and_shows_it(
    seen: ResourcePool, operator: Operator, now: datetime, make_job: MakeJob, api: Api
) -> None:
    drain(operator, seen, "a", reason="", now=now)
    jobs = [make_job(devices=3) for _ in range(2)]
    schedule_pool(seen.pk, now=now)
    assert states_of(jobs) == {JobState.STARTING, JobState.QUEUED}
    queue = api.get(f"/pools/{seen.pk}/queue").json()
    assert (queue["capacity"], queue["drained"], queue["free"]) == (8, 4, 1)
    give_back(operator, seen, "a", now=now)
    schedule_pool(seen.pk, now=now)
    assert states_of(jobs) == {JobState.STARTING}


def test_a_job_that_makes_way_goes_back_to_its_place_in_the_line(
    attempt: JobAttempt, operator: Operator, now: datetime
) -> None:
    job = requeue(attempt.job_id, actor=operator.name, now=now)
    assert (job.state, job.target_state) == (JobState.PAUSING, JobState.QUEUED)
    assert AuditEntry.objects.filter(action="job.sent_back", target=job.pk, team=job.team).exists()
    with pytest.raises(InvalidState):
        requeue(attempt.job_id, actor=operator.name, now=now)
