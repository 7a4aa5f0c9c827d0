"""/metrics for Prometheus: counts of the whole installation from Postgres at each scrape, request durations and the
delay of facts from the web processes, and the free space of their disks. infra/monitoring has rules for them.

Invariants:
- no label names a tenant, a user or a job;
- only this machine may read it, or a client with the environment's token; a request through a proxy or a unix socket
  does not count as from this machine;
- a hanging disk delays a scrape by at most `disks.PATIENCE_S`, and is reported as `laminar_disk_up 0`;
- without a database its metrics are missing and `laminar_database_up` is 0; the page itself still answers.
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
SELECT pool.name, (probe.problem = '')::int, probe.devices,
       CASE WHEN probe.seen_at IS NULL THEN NULL ELSE greatest(0, probe.promised - probe.devices) END,
       pool.autoscales, probe.at
FROM pools_clusterprobe probe JOIN pools_resourcepool pool ON pool.id = probe.pool_id ORDER BY pool.name
"""
_IDLE = """
SELECT pool.name, coalesce(sum(held.devices), 0)
FROM pools_resourcepool pool LEFT JOIN pools_reservation held
  ON held.pool_id = pool.id AND held.released_at IS NULL AND held.created_at < clock_timestamp() - %(span)s
  AND NOT EXISTS (SELECT FROM telemetry_replicaminute worked WHERE worked.job_id = held.job_id
                  AND worked.minute > clock_timestamp() - %(span)s AND worked.doing <> 'idle')
GROUP BY pool.id
"""  # its primary key serves the inner query
IDLE_FOR = timedelta(minutes=10)  # longer than a large model's step with a checkpoint
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
    text = generate_latest(registry) + generate_latest(_request_times())
    return HttpResponse(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)


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
    yield _gauge("laminar_queue_oldest_seconds", "Waiting time of the longest-queued job.", oldest, "pool")
    delays = [((pool, quantile), value) for pool, _, both in _rows(_DELAYS)
              for quantile, value in zip(("0.5", "0.95"), both, strict=True)]  # fmt: skip
    text = "From submission to the first step, for jobs started in the last hour."
    yield _gauge("laminar_queue_delay_seconds", text, delays, "pool", "quantile")
    pools = _rows(_POOLS)
    yield _gauge("laminar_pool_capacity_devices", "Devices of a pool.", [((row[0],), row[1]) for row in pools], "pool")
    held = [((row[0],), row[2]) for row in pools]
    yield _gauge("laminar_pool_reserved_devices", "Devices that jobs hold.", held, "pool")
    live = [((row[0],), row[3]) for row in pools]
    yield _gauge("laminar_pool_reservations", "Live reservations.", live, "pool")
    yield _gauge("laminar_pool_idle_devices", "Reserved devices of jobs whose replicas were idle for ten minutes.",
                 [((pool,), devices) for pool, devices in _rows(_IDLE, {"span": IDLE_FOR})], "pool")  # fmt: skip
    yield from _rays()
    ((stalled,),) = _rows(_STALLED)
    yield _gauge("laminar_jobs_stalled", "Running jobs whose driver is stuck or silent.", [((), stalled)])
    is_away = store_is_away(_rows(STORE))
    up = [] if is_away is None else [((), not is_away)]
    yield _gauge("laminar_store_up", "Whether the store kept its data at a worker's last check.", up)
    ((waiting, age),) = _rows(_OUTBOX)
    yield _gauge("laminar_outbox_messages", "Messages waiting for a worker.", [((), waiting)])
    yield _gauge("laminar_outbox_oldest_seconds", "Age of the oldest waiting message.", [((), age)])
    yield from _webhooks()
    ((facts, seen_at),) = _rows(_INGEST)
    yield _counter("laminar_ingested_facts", "Stored facts of engines.", [((), facts)])
    yield _gauge("laminar_engine_last_seen_timestamp_seconds", "Latest request of any engine.", _moment(seen_at))
    yield from _background()


def _rays() -> Iterator[Metric]:
    rows = _rows(_RAYS)
    up = [((pool,), is_up) for pool, is_up, *_ in rows]
    yield _gauge("laminar_pool_ray_up", "Whether the pool's Ray answered the last check.", up, "pool")
    devices = [((pool,), has) for pool, _, has, *_ in rows if has is not None]
    yield _gauge("laminar_pool_ray_devices", "Devices of the pool's hosts at Ray's last answer.", devices, "pool")
    missing = [((pool,), lacks) for pool, _, _, lacks, scales, _ in rows if lacks is not None and not scales]
    text = "Devices promised by the pool that Ray lacks; absent for an autoscaling pool."
    yield _gauge("laminar_pool_missing_devices", text, missing, "pool")
    at = [((row[0],), row[-1].timestamp()) for row in rows]
    yield _gauge("laminar_pool_looked_at_timestamp_seconds", "Time of the last check of the pool's Ray.", at, "pool")


def _webhooks() -> Iterator[Metric]:
    ((events, pending, dead, late),) = _rows(_WEBHOOKS)
    yield _gauge("laminar_webhook_pending_events", "Events whose deliveries are not written yet.", [((), events)])
    states = [(("pending",), pending), (("dead",), dead)]
    yield _gauge("laminar_webhook_deliveries", "Deliveries that are pending or dead.", states, "state")
    yield _gauge("laminar_webhook_late_seconds", "Delay of the oldest overdue delivery.", [((), max(0, late))])


def _background() -> Iterator[Metric]:
    """The scheduler's rounds run as `jobs.schedule_pool` and `jobs.deliver`."""
    runs = SummaryMetricFamily("laminar_background_seconds", "Runs and durations of background tasks.", labels=["name"])
    failures, longest, last = [], [], []
    for name, count, failed, seconds, most, at in _rows(_BACKGROUND):
        runs.add_metric([name], count_value=count, sum_value=seconds)
        failures.append(((name,), failed))
        longest.append(((name,), most))
        last.append(((name,), at.timestamp()))
    yield runs
    yield _counter("laminar_background_failures", "Failed runs of background tasks.", failures, "name")
    yield _gauge("laminar_background_longest_seconds", "Longest run so far.", longest, "name")
    yield _gauge("laminar_background_last_timestamp_seconds", "Time of the last run.", last, "name")


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
    """As seen by this process. A missing folder has no metrics. For a disk that does not respond, its last values are
    reported with their time."""
    up, free, size, read = [], [], [], []
    environment = settings.ENVIRONMENT
    for name, folder in (("site", environment.site_dir), ("store", environment.store_dir)):
        try:
            room = room_at(folder)
        except OSError as error:
            up += [((name,), 0)] if error.errno != errno.ENOENT else []
            continue
        up.append(((name,), room.silent_s is None))
        if room.last:
            free.append(((name,), room.last.free_bytes))
            size.append(((name,), room.last.num_bytes))
            read.append(((name,), time.time() - room.age_s))
    yield _gauge("laminar_disk_up", "Whether the folder's disk responded to this scrape.", up, "folder")
    yield _gauge("laminar_disk_free_bytes", "Free space on the folder's disk, as last read.", free, "folder")
    yield _gauge("laminar_disk_size_bytes", "Size of the folder's disk.", size, "folder")
    yield _gauge("laminar_disk_read_timestamp_seconds", "Time of the disk's last response.", read, "folder")


def _rows(sql: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as db:
        db.execute(sql, parameters)
        rows: list[tuple[Any, ...]] = db.fetchall()
    return rows
