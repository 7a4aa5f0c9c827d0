"""A pool's capacity against its Ray's devices: what counts as missing, and who is notified."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import User
from backend.pools.clusters.probes import FAILING_AFTER, RayHost, failing_probes, find
from backend.pools.models import ClusterProbe, ResourcePool
from backend.reconcile.background import inspect_rays
from backend.reconcile.ray_probes import inspect_ray_of, one_pool_of_each_ray
from tests.backend.conftest import Api
from tests.backend.fake_ray import FakeRay

EAST = "http://east.example.org:8265"


def host(name: str, *, gpus: float = 0, cpus: float = 4, **labels: str) -> RayHost:
    return RayHost(id=name, name=name, labels=labels, cpus=cpus, gpus=gpus)


HOSTS = [host("a", gpus=8, kind="H100"), host("b", gpus=4, kind="A100"), host("c", cpus=16)]


def pool_of(name: str, capacity: int, **changes: Any) -> ResourcePool:
    return ResourcePool(pk=f"pool_{name}", name=name, flavor="x", capacity=capacity, **changes)


def found(*pools: ResourcePool) -> dict[str, tuple[int, int]]:
    return {pool_id.removeprefix("pool_"): (one.devices, one.promised) for pool_id, one in find(pools, HOSTS).items()}


def test_a_pool_has_the_gpus_of_the_hosts_that_its_labels_choose() -> None:
    assert found(pool_of("all", 12), pool_of("H", 8, labels={"kind": "H100"})) == {"all": (12, 20), "H": (8, 8)}
    assert found(pool_of("other", 4, labels={"kind": "!H100"})) == {"other": (4, 4)}
    assert found(pool_of("none", 4, labels={"kind": "B200"}, device="gpu")) == {"none": (0, 4)}


def test_what_two_pools_promise_of_the_same_hosts_is_added_up() -> None:
    apart = found(pool_of("H", 8, labels={"kind": "H100"}), pool_of("A", 4, labels={"kind": "A100"}))
    assert apart == {"H": (8, 8), "A": (4, 4)}
    same = found(pool_of("one", 8, labels={"kind": "H100"}), pool_of("two", 4, labels={"kind": "H100"}))
    assert same == {"one": (8, 12), "two": (8, 12)}


def test_slots_of_cpus_are_not_taken_from_gpus() -> None:
    both = found(pool_of("gpus", 12, device="gpu"), pool_of("cpus", 30, device="cpu"))
    assert both == {"gpus": (12, 12), "cpus": (240, 30)}
    assert found(pool_of("as it was", 3, labels={"kind": "!in(H100, A100)"})) == {"as it was": (160, 3)}


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay(nodes=[host("a", gpus=8)])


def test_gap_is_stored_reported_and_ended(
    pool: ResourcePool, ray: FakeRay, now: datetime, api_of: Any, bob: User
) -> None:
    def shown() -> tuple[int, bool]:
        (row,) = api_of(bob).get("/pools").json()["data"]
        return row["missing"], row["is_away"]

    inspect_ray_of(pool.pk, ray, now=now - 2 * FAILING_AFTER)
    assert failing_probes(now) == [] and shown() == (0, False)
    ray.nodes = [host("a", gpus=6)]
    long_ago = now - timedelta(days=1_000)
    inspect_ray_of(pool.pk, ray, now=long_ago)
    assert failing_probes(long_ago) == [], "a Ray that restarts is back by then"
    inspect_ray_of(pool.pk, ray, now=long_ago + FAILING_AFTER)
    (probe,) = failing_probes(long_ago + FAILING_AFTER)
    assert (probe.missing, probe.devices, probe.promised, probe.failing_since) == (2, 6, 8, long_ago)
    assert probe.hosts == [{"id": "a", "name": "a", "labels": {}, "cpus": 4, "gpus": 6, "kinds": []}]
    assert shown() == (2, False)
    assert 'laminar_pool_missing_devices{pool="small"} 2.0' in Client().get("/metrics").content.decode()
    ray.away = True
    inspect_ray_of(pool.pk, ray, now=now)
    probe = ClusterProbe.objects.get()
    assert (probe.problem, probe.devices, probe.seen_at) == ("no route to host", 6, long_ago + FAILING_AFTER)
    assert shown()[1] and 'laminar_pool_ray_up{pool="small"} 0.0' in Client().get("/metrics").content.decode()
    ray.away, ray.nodes = False, [host("a", gpus=8)]
    inspect_ray_of(pool.pk, ray, now=now)
    assert failing_probes(now + 2 * FAILING_AFTER) == [] and shown() == (0, False)


def test_a_pool_that_scales_by_itself_has_no_gap_but_may_be_away(
    pool: ResourcePool, ray: FakeRay, now: datetime
) -> None:
    ResourcePool.objects.update(autoscales=True)
    ray.nodes = []
    inspect_ray_of(pool.pk, ray, now=now)
    assert failing_probes(now + 2 * FAILING_AFTER) == []
    assert b"laminar_pool_missing_devices{" not in Client().get("/metrics").content
    ray.away = True
    inspect_ray_of(pool.pk, ray, now=now)
    assert len(failing_probes(now + 2 * FAILING_AFTER)) == 1


def test_one_look_is_for_all_pools_of_a_ray(pool: ResourcePool, ray: FakeRay, now: datetime) -> None:
    ResourcePool.objects.create(name="beside", flavor="x", capacity=1)
    east = ResourcePool.objects.create(name="east", flavor="x", capacity=1, ray_url=EAST)
    pools = list(one_pool_of_each_ray())
    assert len(pools) == 2 and east.pk in pools
    inspect_ray_of(pool.pk, ray, now=now)
    assert set(ClusterProbe.objects.values_list("pool__name", flat=True)) == {"small", "beside"}
    inspect_ray_of("pool_that_is_gone", ray, now=now)


def test_every_ray_has_a_message_of_its_own(pool: ResourcePool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(
        "backend.reconcile.background.check_ray.apply_async", lambda args, expires: sent.append((args, expires))
    )
    inspect_rays()
    assert sent == [((pool.pk,), 30.0)]


def test_team_page_shows_gap_and_operator_page_its_reason(
    pool: ResourcePool, ray: FakeRay, alice: User, bob: User, api: Api
) -> None:
    ray.away = True
    inspect_ray_of(pool.pk, ray, now=datetime.fromisoformat("2026-01-01T00:00+00:00"))
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    pages = {}
    for user in (alice, bob):
        client = Client()
        client.force_login(User.objects.get(pk=user.pk), backend="allauth.account.auth_backends.AuthenticationBackend")
        pages[user.email] = client.get("/queue/", secure=True).content.decode()
    assert all("has not responded since" in page for page in pages.values())
    assert "no route to host" not in pages[alice.email] and "no route to host" in pages[bob.email]
