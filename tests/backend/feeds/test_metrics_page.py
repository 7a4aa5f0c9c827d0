"""/metrics: correct figures, for operators only, without tenant names."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from backend.api.background_times import note_background
from backend.borders.proxies import read_networks
from backend.feeds import prometheus
from backend.jobs.models import Job, JobAttempt
from backend.pools.models import ResourcePool
from backend.webhooks.fan_out import fan_out
from backend.webhooks.models import WebhookEndpoint
from tests.backend.conftest import NOW


def scrape(**headers: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    response = Client().get("/metrics", headers=headers)
    assert response.status_code == 200, response.content
    families = text_string_to_metric_families(response.content.decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(metric: str, /, **labels: str) -> float:
    return scrape()[metric, frozenset(labels.items())]


class TestWhoMayRead:
    def test_this_machine_may(self, db: None) -> None:
        assert Client().get("/metrics").status_code == 200

    @pytest.mark.parametrize(
        "header", ["X-Forwarded-For", "Forwarded", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Real-IP", "Via"]
    )
    def test_request_through_a_local_proxy_is_refused(self, db: None, settings: Any, header: str) -> None:
        refused = Client().get("/metrics", headers={header: "127.0.0.1"})
        assert refused.status_code == 401 and b"laminar_" not in refused.content
        settings.ENVIRONMENT = replace(settings.ENVIRONMENT, metrics_token="long-and-secret")
        both = {header: "127.0.0.1", "Authorization": "Bearer long-and-secret"}
        assert Client().get("/metrics", headers=both).status_code == 200

    def test_request_from_a_proxy_address_is_refused(self, db: None, settings: Any) -> None:
        """A proxy without headers is recognised by its address, or by its socket."""
        settings.ENVIRONMENT = replace(settings.ENVIRONMENT, trusted_proxies=read_networks("127.0.0.0/8"))
        assert Client().get("/metrics").status_code == 401
        settings.ENVIRONMENT = replace(settings.ENVIRONMENT, trusted_proxies=())
        assert Client().get("/metrics", REMOTE_ADDR="").status_code == 401
        assert Client().get("/metrics", REMOTE_ADDR="::1").status_code == 200

    def test_another_machine_may_not_without_the_token(self, db: None, settings: Any) -> None:
        elsewhere = {"REMOTE_ADDR": "192.0.2.7"}
        assert Client().get("/metrics", **elsewhere).status_code == 401  # type: ignore[arg-type]  # a WSGI variable
        bearer = {"Authorization": "Bearer "}
        assert Client().get("/metrics", headers=bearer, **elsewhere).status_code == 401  # type: ignore[arg-type]
        settings.ENVIRONMENT = replace(settings.ENVIRONMENT, metrics_token="long-and-secret")
        for token, status in (("long-and-secret", 200), ("long-and-secre", 401), ("", 401), ("é", 401)):
            sent = {"Authorization": f"Bearer {token}"}
            answer = Client().get("/metrics", headers=sent, **elsewhere)  # type: ignore[arg-type]
            assert answer.status_code == status, token


class TestFigures:
    @pytest.mark.long
    def test_jobs_pools_and_queues_are_counted_from_postgres(
        self, make_job: Any, pool: ResourcePool, attempt: JobAttempt
    ) -> None:
        """One job is starting and holds three devices; another has waited for an hour."""
        make_job(at=datetime.now(UTC) - timedelta(hours=1))
        assert value("laminar_jobs", state="starting") == 1 and value("laminar_jobs", state="failed") == 0
        assert value("laminar_jobs", state="queued") + value("laminar_jobs", state="validating") == 1
        assert value("laminar_pool_capacity_devices", pool="small") == pool.capacity
        assert value("laminar_pool_reserved_devices", pool="small") == attempt.job.devices
        Job.objects.exclude(pk=attempt.job_id).update(state="queued")
        assert 3_590 < value("laminar_queue_oldest_seconds", pool="small") < 3_700
        assert value("laminar_outbox_messages") >= 1 and value("laminar_database_up") == 1

    def test_queue_delay_is_of_started_jobs(self, attempt: JobAttempt) -> None:
        started = datetime.now(UTC) - timedelta(minutes=5)
        Job.objects.filter(pk=attempt.job_id).update(created_at=started - timedelta(seconds=40), started_at=started)
        assert value("laminar_queue_delay_seconds", pool="small", quantile="0.5") == pytest.approx(40)

    @pytest.mark.long
    def test_webhook_backlog_is_exported(self, make_job: Any, alice: Any, team: Any) -> None:
        WebhookEndpoint.objects.create(team=team, url="https://a.example", events=["*"], secret="", created_at=NOW)
        make_job()
        assert value("laminar_webhook_pending_events") >= 1
        fan_out(now=datetime.now(UTC) - timedelta(minutes=1))
        assert value("laminar_webhook_pending_events") == 0
        assert value("laminar_webhook_deliveries", state="pending") >= 1
        assert value("laminar_webhook_late_seconds") > 50

    def test_facts_that_were_stored_are_counted(self, attempt: JobAttempt) -> None:
        JobAttempt.objects.filter(pk=attempt.pk).update(acked_seq=812)
        assert value("laminar_ingested_facts_total") == 812

    @pytest.mark.long
    def test_background_tasks_add_up_across_processes(self, db: None) -> None:
        note_background("jobs.schedule_pool", 0.25)
        note_background("jobs.schedule_pool", 0.75, is_failure=True)
        assert value("laminar_background_seconds_sum", name="jobs.schedule_pool") == 1.0
        assert value("laminar_background_seconds_count", name="jobs.schedule_pool") == 2
        assert value("laminar_background_failures_total", name="jobs.schedule_pool") == 1
        assert value("laminar_background_longest_seconds", name="jobs.schedule_pool") == 0.75

    @pytest.mark.long
    def test_requests_are_timed_by_route_not_by_path(self, api: Any, job: Job) -> None:
        labels = {"route": "/api/v1/jobs/<job_id>", "method": "GET", "status": "200"}
        before = scrape().get(("laminar_request_seconds_count", frozenset(labels.items())), 0)
        api.get(f"/jobs/{job.pk}"), api.get("/jobs/job_unknown"), api.get("/no/such/route")
        assert value("laminar_request_seconds_count", **labels) == before + 1
        text = Client().get("/metrics").content.decode()
        assert job.pk not in text and "no/such" not in text and 'route="none"' in text

    def test_metrics_name_no_tenant(self, job: Job, team: Any, alice: Any) -> None:
        text = Client().get("/metrics").content.decode()
        for name in (team.pk, team.name, alice.email, job.name, job.project_id):
            assert name not in text

    def test_page_answers_without_a_database(self, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
        def away() -> Iterator[Any]:
            raise OperationalError("away")

        monkeypatch.setattr(prometheus, "_read", away)
        assert value("laminar_database_up") == 0


@pytest.mark.long
def test_metrics_sum_over_web_processes(tmp_path: Path) -> None:
    """Two processes time requests in a shared folder; a third is scraped."""
    environment = os.environ | {"LAMINAR_METRICS_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "backend.settings"}

    def run(script: str) -> str:
        setup = "import django; django.setup()\nfrom django.test import Client, RequestFactory\n"
        done = subprocess.run(
            [sys.executable, "-c", setup + script], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    for _ in range(2):
        run("[Client(headers={'host': '127.0.0.1'}).get('/healthz') for _ in range(3)]")
    page = run(
        "from backend.feeds.prometheus import _request_times\nfrom prometheus_client import generate_latest\n"
        "print(generate_latest(_request_times()).decode())"
    )
    assert 'laminar_request_seconds_count{method="GET",route="/healthz",status="200"} 6.0' in page
