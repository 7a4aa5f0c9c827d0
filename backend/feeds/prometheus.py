"""/metrics for Prometheus: counts of the whole installation, read from Postgres at each scrape, durations of requests
and the delay of facts, counted in the web processes, and the room on their disks. infra/monitoring has rules over them.

Invariants:
- no label names a tenant, a person or a job;
- only this machine may read it, or who sends the token of the environment; what came through a proxy, or over a unix
  socket, is not this machine;
- a disk that hangs holds up no scrape for longer than `disks.PATIENCE_S`, and is told as `laminar_disk_up 0`;
- a database that is away leaves out what it knows and says `laminar_database_up 0`; the page itself still answers.
"""

import errno
import hmac
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
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
from backend.disks import room_at
from backend.jobs.models import JobState
from backend.surroundings import STORE, store_is_away

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
_RAYS = """
SELECT pool.name, (look.problem = '')::int, look.devices,
       CASE WHEN look.seen_at IS NULL THEN NULL ELSE greatest(0, look.promised - look.devices) END,
       pool.autoscales, look.at
FROM pools_raylook look JOIN pools_resourcepool pool ON pool.id = look.pool_id ORDER BY pool.name
"""
_IDLE = """
SELECT pool.name, coalesce(sum(held.devices), 0)
FROM pools_resourcepool pool LEFT JOIN pools_reservation held
  ON held.pool_id = pool.id AND held.released_at IS NULL AND held.created_at < clock_timestamp() - %(span)s
  AND NOT EXISTS (SELECT FROM telemetry_replicaminute worked WHERE worked.job_id = held.job_id
                  AND worked.minute > clock_timestamp() - %(span)s AND worked.doing <> 'idle')
GROUP BY pool.id
"""  # its primary key serves the inner one
IDLE_FOR = timedelta(minutes=10)  # a step of a large model, with its checkpoint, is shorter
_STALLED = "SELECT count(*) FROM jobs_job WHERE stalled_since IS NOT NULL AND state IN ('running', 'recovering')"
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
        yield from _disks()


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
    yield _gauge("laminar_pool_idle_devices", "Of these, those of jobs whose replicas did nothing for ten minutes.",
                 [((pool,), devices) for pool, devices in _rows(_IDLE, {"span": IDLE_FOR})], "pool")  # fmt: skip
    yield from _rays()
    ((stalled,),) = _rows(_STALLED)
    yield _gauge(
        "laminar_jobs_stalled", "Running jobs whose driver stands still, or of which nobody hears.", [((), stalled)]
    )
    is_away = store_is_away(_rows(STORE))
    up = [] if is_away is None else [((), not is_away)]
    yield _gauge("laminar_store_up", "Whether the store kept what it was given, when a worker looked last.", up)
    ((waiting, age),) = _rows(_OUTBOX)
    yield _gauge("laminar_outbox_messages", "Messages that wait for a worker.", [((), waiting)])
    yield _gauge("laminar_outbox_oldest_seconds", "Age of the oldest of them.", [((), age)])
    yield from _webhooks()
    ((facts, seen_at),) = _rows(_INGEST)
    yield _counter("laminar_ingested_facts", "Facts of engines that were stored.", [((), facts)])
    yield _gauge("laminar_engine_last_seen_timestamp_seconds", "The newest word of any engine.", _moment(seen_at))
    yield from _background()


def _rays() -> Iterator[Metric]:
    rows = _rows(_RAYS)
    up = [((pool,), is_up) for pool, is_up, *_ in rows]
    yield _gauge("laminar_pool_ray_up", "Whether the pool's Ray answered the last look.", up, "pool")
    devices = [((pool,), has) for pool, _, has, *_ in rows if has is not None]
    yield _gauge("laminar_pool_ray_devices", "Devices of the pool's hosts, when Ray answered last.", devices, "pool")
    missing = [((pool,), lacks) for pool, _, _, lacks, scales, _ in rows if lacks is not None and not scales]
    text = "Devices that are promised of the pool's hosts and that Ray has not; none of a pool that scales by itself."
    yield _gauge("laminar_pool_missing_devices", text, missing, "pool")
    at = [((row[0],), row[-1].timestamp()) for row in rows]
    yield _gauge("laminar_pool_looked_at_timestamp_seconds", "When the pool's Ray was looked at last.", at, "pool")


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


def _disks() -> Iterator[Metric]:
    """As this process sees them. A folder that is not there has no room to tell of; of a disk that does not answer its
    last word is told, with the moment at which it was said."""
    up, free, size, read = [], [], [], []
    environment = settings.ENVIRONMENT
    for name, folder in (("site", environment.site_dir), ("store", environment.store_dir)):
        try:
            heard = room_at(folder)
        except OSError as error:
            up += [((name,), 0)] if error.errno != errno.ENOENT else []
            continue
        up.append(((name,), heard.silent_s is None))
        if heard.last:
            free.append(((name,), heard.last.free_bytes))
            size.append(((name,), heard.last.num_bytes))
            read.append(((name,), time.time() - heard.age_s))
    yield _gauge("laminar_disk_up", "Whether the disk of that folder answered this scrape.", up, "folder")
    yield _gauge("laminar_disk_free_bytes", "Room for us on that disk, by its last answer.", free, "folder")
    yield _gauge("laminar_disk_size_bytes", "Size of that disk.", size, "folder")
    yield _gauge("laminar_disk_read_timestamp_seconds", "When it answered last.", read, "folder")


def _rows(sql: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as db:
        db.execute(sql, parameters)
        rows: list[tuple[Any, ...]] = db.fetchall()
    return rows
