"""/metrics for Prometheus: counts of the whole installation, read from Postgres at each scrape, and durations of
requests, counted in the web processes.

Invariants:
- no label names a tenant, a person or a job;
- only this machine may read it, or who sends the token of the environment; what came through a proxy, or over a unix
  socket, is not this machine;
- a database that is away leaves out what it knows and says `laminar_database_up 0`; the page itself still answers.
"""

import hmac
import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from backend.api import request_times
from backend.borders.proxies import is_from_this_machine
from backend.jobs.models import JobState

_JOBS = "SELECT state, count(*) FROM jobs_job GROUP BY state"
_WAITING = """
SELECT pool.name, extract(epoch FROM clock_timestamp() - min(job.queued_at))
FROM pools_resourcepool pool JOIN jobs_job job ON job.pool_id = pool.id AND job.state = 'queued'
GROUP BY pool.name
"""
_DELAYS = """
SELECT pool.name, count(*),
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM job.started_at - job.created_at))
FROM jobs_job job JOIN pools_resourcepool pool ON pool.id = job.pool_id
WHERE job.started_at > clock_timestamp() - interval '1 hour' GROUP BY pool.name
"""
_POOLS = """
SELECT pool.name, pool.capacity, coalesce(sum(held.devices), 0), count(held.devices)
FROM pools_resourcepool pool
LEFT JOIN pools_reservation held ON held.pool_id = pool.id AND held.released_at IS NULL
GROUP BY pool.id
"""
_OUTBOX = """
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0) FROM jobs_outboxmessage
"""
_WEBHOOKS = """
SELECT (SELECT count(*) FROM webhooks_pendingevent),
       count(*) FILTER (WHERE state = 'pending'), count(*) FILTER (WHERE state = 'dead'),
       coalesce(extract(epoch FROM clock_timestamp() - min(due_at) FILTER (WHERE state = 'pending')), 0)
FROM webhooks_webhookdelivery
"""
_INGEST = "SELECT coalesce(sum(acked_seq), 0), max(last_seen_at) FROM jobs_jobattempt"
_BACKGROUND = "SELECT name, runs, failures, seconds, longest_s, last_at FROM api_backgroundtime ORDER BY name"


def metrics(request: HttpRequest) -> HttpResponse:
    if not _may_read(request):
        return HttpResponse("Send LAMINAR_METRICS_TOKEN as a bearer token.\n", status=401, content_type="text/plain",
                            headers={"WWW-Authenticate": "Bearer"})  # fmt: skip
    registry = CollectorRegistry()
    registry.register(FromPostgres())
    told = generate_latest(registry) + generate_latest(_request_times())
    return HttpResponse(told, content_type=CONTENT_TYPE_PLAIN_0_0_4)


def _may_read(request: HttpRequest) -> bool:
    token = settings.ENVIRONMENT.metrics_token
    sent = request.headers.get("Authorization", "")
    if token and hmac.compare_digest(sent.encode(), f"Bearer {token}".encode()):
        return True
    return is_from_this_machine(request, trusted=settings.ENVIRONMENT.trusted_proxies)


def _request_times() -> CollectorRegistry:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return request_times.registry
    shared = CollectorRegistry()
    MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
    return shared


class FromPostgres(Collector):
    def collect(self) -> Iterable[Metric]:
        up = 1
        try:
            with transaction.atomic():
                yield from list(_read())
        except (DatabaseError, InterfaceError):
            up = 0
        yield _gauge("laminar_database_up", "Whether Postgres answered this scrape.", [((), up)])


def _read() -> Iterator[Metric]:
    counts = dict(_rows(_JOBS))
    by_state = [((state,), counts.get(state, 0)) for state in JobState.values]
    yield _gauge("laminar_jobs", "Jobs by state.", by_state, "state")
    oldest = [((pool,), seconds) for pool, seconds in _rows(_WAITING)]
    yield _gauge("laminar_queue_oldest_seconds", "How long the first in line has waited.", oldest, "pool")
    delays = [((pool, quantile), value) for pool, _, both in _rows(_DELAYS)
              for quantile, value in zip(("0.5", "0.95"), both, strict=True)]  # fmt: skip
    text = "From submission to the first step, of jobs that started in the last hour."
    yield _gauge("laminar_queue_delay_seconds", text, delays, "pool", "quantile")
    pools = _rows(_POOLS)
    yield _gauge("laminar_pool_capacity_devices", "Devices of a pool.", [((row[0],), row[1]) for row in pools], "pool")
    held = [((row[0],), row[2]) for row in pools]
    yield _gauge("laminar_pool_reserved_devices", "Devices that jobs hold.", held, "pool")
    live = [((row[0],), row[3]) for row in pools]
    yield _gauge("laminar_pool_reservations", "Live reservations.", live, "pool")
    ((waiting, age),) = _rows(_OUTBOX)
    yield _gauge("laminar_outbox_messages", "Messages that wait for a worker.", [((), waiting)])
    yield _gauge("laminar_outbox_oldest_seconds", "Age of the oldest of them.", [((), age)])
    yield from _webhooks()
    ((facts, seen_at),) = _rows(_INGEST)
    yield _counter("laminar_ingested_facts", "Facts of engines that were stored.", [((), facts)])
    yield _gauge("laminar_engine_last_seen_timestamp_seconds", "The newest word of any engine.", _moment(seen_at))
    yield from _background()


def _webhooks() -> Iterator[Metric]:
    ((events, pending, dead, late),) = _rows(_WEBHOOKS)
    yield _gauge("laminar_webhook_pending_events", "Events whose deliveries are not written yet.", [((), events)])
    states = [(("pending",), pending), (("dead",), dead)]
    yield _gauge("laminar_webhook_deliveries", "Deliveries that are not over, or could not be made.", states, "state")
    yield _gauge("laminar_webhook_late_seconds", "How long the oldest is overdue.", [((), max(0, late))])


def _background() -> Iterator[Metric]:
    """The scheduler's rounds are `jobs.schedule_pool` and `jobs.deliver`."""
    runs = SummaryMetricFamily("laminar_background_seconds", "Background tasks: how many, how long.", labels=["name"])
    failures, longest, last = [], [], []
    for name, count, failed, seconds, most, at in _rows(_BACKGROUND):
        runs.add_metric([name], count_value=count, sum_value=seconds)
        failures.append(((name,), failed))
        longest.append(((name,), most))
        last.append(((name,), at.timestamp()))
    yield runs
    yield _counter("laminar_background_failures", "Background tasks that raised.", failures, "name")
    yield _gauge("laminar_background_longest_seconds", "The longest run so far.", longest, "name")
    yield _gauge("laminar_background_last_timestamp_seconds", "When it ran last.", last, "name")


Samples = Iterable[tuple[tuple[str, ...], Any]]


def _gauge(name: str, text: str, samples: Samples, *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, float(value))
    return family


def _counter(name: str, text: str, samples: Samples, *labels: str) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, float(value))
    return family


def _moment(at: datetime | None) -> Samples:
    return [((), at.timestamp())] if at else []


def _rows(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as db:
        db.execute(sql)
        rows: list[tuple[Any, ...]] = db.fetchall()
    return rows
