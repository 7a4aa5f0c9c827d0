"""/readyz reports beat, worker, Ray and store as last seen, stays up without them, and waits for none."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from backend import health
from backend.clock import database_now
from backend.operating import status
from backend.operating.background import check_store
from backend.operating.checks.findings import Finding, good
from backend.operating.checks.store import READS_NOT
from backend.operating.models import Examination
from backend.pools.models import ClusterProbe, ResourcePool
from backend.pulses import BEAT, CANARY
from tests.backend.test_pulses import beaten


@pytest.fixture
def ready(transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A new probe of this test's own database."""
    url = settings.ENVIRONMENT.database_url.rpartition("/")[0] + f"/{connection.settings_dict['NAME']}"
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, database_url=url)

    def ask() -> Any:
        monkeypatch.setattr(health, "probe", health.ReadinessProbe())
        answer = Client().get("/readyz")
        assert answer.status_code == 200, answer.content
        return answer.json()

    return ask


def seen(pool: ResourcePool, *, at: datetime, problem: str = "") -> None:
    ClusterProbe.objects.update_or_create(pool=pool, defaults={"at": at, "problem": problem, "seen_at": at})


def test_an_empty_site_knows_of_nothing_and_serves(ready: Callable[[], Any]) -> None:
    report = ready()
    assert {name: report[name] for name in ("beat", "worker", "ray", "store")} == dict.fromkeys(
        ("beat", "worker", "ray", "store")
    )
    assert [each.partition(":")[0] for each in report["warnings"]] == ["beat", "worker"]


def test_age_of_beats_tick_is_exported(ready: Callable[[], Any]) -> None:
    beaten(BEAT, ago_s=12)
    beaten(CANARY, ago_s=40)
    report = ready()
    assert report["beat"] is True and 12 <= report["beat_age_s"] < 20
    assert report["worker"] is False and report["worker_age_s"] >= 40


def test_unreachable_ray_is_a_warning_without_names(
    ready: Callable[[], Any],
) -> None:
    pools = [ResourcePool.objects.create(name=name, flavor="cpu", capacity=1) for name in ("secret-pool", "other")]
    now = database_now()
    seen(pools[0], at=now, problem="http://10.0.0.7:8265 does not answer")
    seen(pools[1], at=now)
    report = ready()
    assert report["ray"] is False
    (warning,) = [each for each in report["warnings"] if each.startswith("ray")]
    assert "1 of 2 pools" in warning and "10.0" not in str(report) and "secret-pool" not in str(report)
    seen(pools[0], at=now)
    assert ready()["ray"] is True
    for pool in pools:
        seen(pool, at=now - timedelta(minutes=10), problem="away")
    assert ready()["ray"] is None, "no recent probe"


class TestStore:
    @pytest.fixture
    def found(self, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
        found = [good("it keeps what it is given")]

        def check(_: Any) -> Iterator[Finding]:
            yield from found

        monkeypatch.setitem(status.OF_THE_STORE.checks, "Store", check)
        return found

    def test_it_is_as_the_workers_tick_found_it(self, ready: Callable[[], Any], found: list[Finding]) -> None:
        check_store()
        assert ready()["store"] is True
        found[:] = [READS_NOT.found("s3://our-bucket/x: AccessDenied")]
        before = database_now() - timedelta(seconds=40)
        Examination.objects.update(began_at=before, ended_at=before)
        check_store()
        report = ready()
        assert report["store"] is False and "our-bucket" not in str(report)
        assert [each for each in report["warnings"] if each.startswith("store: fails to write")]

    def test_a_look_that_does_not_come_back_is_a_store_that_hangs(
        self, ready: Callable[[], Any], found: list[Finding]
    ) -> None:
        check_store()
        long_ago = database_now() - timedelta(minutes=5)
        Examination.objects.update(began_at=long_ago, ended_at=long_ago)
        assert ready()["store"] is None, "no probe is running"
        Examination.objects.update(began_at=database_now() - timedelta(seconds=5))
        assert ready()["store"] is False

    def test_the_real_one_is_looked_at(self, ready: Callable[[], Any]) -> None:
        check_store()
        assert ready()["store"] is True


def test_silent_dependency_is_probed_once_and_delays_no_one(
    ready: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, probes, now = threading.Event(), [], [100.0]

    def hangs() -> str:
        probes.append(1)
        assert may_answer.wait(30)
        return ""

    monkeypatch.setitem(health._PARTS, "broker", hangs)
    monkeypatch.setattr(health, "LONGEST_S", 0.2)
    monkeypatch.setattr(health, "probe", health.ReadinessProbe(lambda: now[0]))
    for _ in range(3):
        answer = Client().get("/readyz")
        assert answer.status_code == 503 and "did not respond" in answer.json()["problems"][0]
        now[0] += 60
    assert len(probes) == 1
    may_answer.set()
    health.probe._result.result(10)  # type: ignore[union-attr]
    assert Client().get("/readyz").status_code == 200
