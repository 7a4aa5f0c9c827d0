"""Every alarm of infra/monitoring fires for its fault on a real site's /metrics, and none on a healthy one.

`promql` evaluates the expressions; promtool, if installed, must agree.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.db import OperationalError, connection, transaction
from django.test import Client
from django.utils.timezone import now

from backend.api import request_times
from backend.api.background_times import note_background
from backend.background_call import CallResult
from backend.disks import Room
from backend.feeds import prometheus
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState, OutboxMessage
from backend.operating.models import Examination
from backend.pools.models import ClusterProbe, Reservation, ResourcePool
from backend.pulses import BEAT, CANARY
from backend.telemetry.intake.delay import note_delay
from backend.telemetry.models import ReplicaMinute
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
from engine.spec.facts import DriverStarted, Fact
from tests.backend.monitoring.promql import History
from tests.backend.monitoring.scraped import ROOT, RULES, RULES_FILE, after, firing, lasting, raised, scrape
from tests.backend.test_pulses import beaten

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def pool(attempt: JobAttempt, pool: ResourcePool) -> ResourcePool:
    """A healthy site: a job runs on three of its pool's devices, and all heartbeats are recent."""
    request_times._seconds.clear()  # of every earlier request in this process
    OutboxMessage.objects.all().delete()
    Reservation.objects.update(created_at=now() - timedelta(hours=1))
    ReplicaMinute.objects.create(job=attempt.job, minute=now(), attempt=1, replica=0, doing="decode", seconds=9.0)
    for name in (BEAT, CANARY):
        beaten(name, ago_s=2)
    ClusterProbe.objects.create(pool=pool, at=now(), seen_at=now(), devices=8, promised=8)
    Examination.objects.create(pk="store", began_at=now(), ended_at=now(), parts=[])
    beaten("backup", ago_s=20 * 3600)
    Client().get("/healthz")
    return pool


def is_so(pool: ResourcePool) -> History:
    return lasting(scrape(), at=time.time())


def away(pool: ResourcePool) -> History:
    return lasting({}, at=time.time())


def of_no_database(pool: ResourcePool) -> History:
    def raises() -> Iterator[Any]:
        raise OperationalError("away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prometheus, "_read", raises)
        return is_so(pool)


def of_errors(pool: ResourcePool) -> History:
    def answered(route: str, status: str, times: int) -> None:
        for _ in range(times):
            request_times._seconds.labels(route=route, method="GET", status=status).observe(0.1)

    for route, status in (("/x", "200"), ("/x", "500"), ("/readyz", "503")):
        answered(route, status, 1)
    before = scrape()
    answered("/x", "200", 16)
    answered("/x", "500", 4)
    return after(before, scrape(), at=time.time())


def of_silence(name: str) -> Callable[[ResourcePool], History]:
    def silent(pool: ResourcePool) -> History:
        beaten(name, ago_s=90)
        return is_so(pool)

    return silent


def of_acts_that_wait(pool: ResourcePool) -> History:
    at = now() - timedelta(minutes=4)
    OutboxMessage.objects.create(topic="launch", key="job_1", created_at=at, not_before=at)
    return is_so(pool)


def of_failing_tasks(pool: ResourcePool) -> History:
    note_background("webhooks.send", 0.1, is_failure=True)
    before = scrape()
    for _ in range(8):
        note_background("webhooks.send", 0.1, is_failure=True)
    return after(before, scrape(), at=time.time())


def of_a_line_before_an_empty_pool(pool: ResourcePool, make_job: Make) -> History:
    with transaction.atomic():
        job = locked_job(Job.objects.get().pk)
        for state in (JobState.STOPPING, JobState.CANCELLED):
            change_state(job, state, actor="user:1", now=now())
    return of_a_long_line(pool, make_job, minutes=12)


def of_a_long_line(pool: ResourcePool, make_job: Make, *, minutes: int = 300) -> History:
    make_job(at=now() - timedelta(minutes=minutes))
    OutboxMessage.objects.all().delete()
    return is_so(pool)


def of_late_facts(pool: ResourcePool) -> History:
    before = scrape()
    for _ in range(20):
        fact = Fact(seq=1, at=now() - timedelta(seconds=200), body=DriverStarted(host="h", pid=1))
        note_delay([fact], now=now())
    return after(before, scrape(), at=time.time())


def of_a_stalled_job(pool: ResourcePool) -> History:
    with transaction.atomic():
        job = locked_job(Job.objects.get().pk)
        change_state(job, JobState.RUNNING, actor="engine:1", now=now())
    Job.objects.update(stalled_since=now())
    return is_so(pool)


def looked(**seen: Any) -> Callable[[ResourcePool], History]:
    def look(pool: ResourcePool) -> History:
        ClusterProbe.objects.update(**{name: value() if callable(value) else value for name, value in seen.items()})
        return is_so(pool)

    return look


def of_idle_devices(pool: ResourcePool) -> History:
    ReplicaMinute.objects.update(doing="idle")
    return is_so(pool)


def of_a_store_that_refuses(pool: ResourcePool) -> History:
    Examination.objects.update(parts=[{"title": "Store", "findings": [{"verdict": "wrong", "observation": "…"}]}])
    return is_so(pool)


def of_a_disk(free: float) -> Callable[[ResourcePool], History]:
    return of_disks(CallResult(last=Room(free_bytes=int(free * 10**13), num_bytes=10**13, may_write=True)))


def of_an_old_backup(pool: ResourcePool) -> History:
    beaten("backup", ago_s=40 * 3600)
    return is_so(pool)


def of_disks(heard: CallResult[Room]) -> Callable[[ResourcePool], History]:
    def so(pool: ResourcePool) -> History:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prometheus, "room_at", lambda _: heard)
            return is_so(pool)

    return so


def of_late_webhooks(pool: ResourcePool) -> History:
    team = Job.objects.get().team
    endpoint = WebhookEndpoint.objects.create(
        team=team, url="https://a.example", events=["*"], secret="", created_at=now()
    )
    at = now() - timedelta(hours=1)
    WebhookDelivery.objects.create(endpoint=endpoint, state="pending", due_at=at, created_at=at)
    return is_so(pool)


# A fault of the site, by its alarm; and further alarms that it rightly raises.
TROUBLES: dict[str, tuple[Callable[..., History], set[str]]] = {
    "LaminarAway": (away, set()),
    "LaminarDatabaseAway": (of_no_database, set()),
    "LaminarErrors": (of_errors, set()),
    "LaminarBeatSilent": (of_silence(BEAT), set()),
    "LaminarWorkerSilent": (of_silence(CANARY), set()),
    "LaminarOutboxOld": (of_acts_that_wait, set()),
    "LaminarBackgroundFails": (of_failing_tasks, set()),
    "LaminarQueueStuck": (of_a_line_before_an_empty_pool, set()),
    "LaminarQueueOld": (of_a_long_line, set()),
    "LaminarIngestLate": (of_late_facts, set()),
    "LaminarJobsStalled": (of_a_stalled_job, set()),
    "LaminarRayAway": (looked(problem="no answer"), set()),
    "LaminarRayUnwatched": (looked(at=lambda: now() - timedelta(minutes=5)), set()),
    "LaminarDevicesMissing": (looked(devices=6), set()),
    "LaminarDevicesIdle": (of_idle_devices, set()),
    "LaminarStoreAway": (of_a_store_that_refuses, set()),
    "LaminarBackupOld": (of_an_old_backup, set()),
    "LaminarDiskSilent": (of_disks(CallResult(last=None, silent_s=200)), set()),
    "LaminarDiskLow": (of_a_disk(0.07), set()),
    "LaminarDiskFull": (of_a_disk(0.01), {"LaminarDiskLow"}),
    "LaminarWebhooksLate": (of_late_webhooks, set()),
}


def test_on_a_healthy_site_no_alarm_is_raised(pool: ResourcePool, tmp_path: Path) -> None:
    history = is_so(pool)
    assert firing(history) == set()
    promtool_agrees(history, set(), tmp_path)


@pytest.mark.parametrize("name", RULES)
def test_alarm_fires_alone_for_its_fault(name: str, pool: ResourcePool, make_job: Make, tmp_path: Path) -> None:
    befall, beside = TROUBLES[name]
    history = befall(pool, make_job) if "make_job" in signature(befall).parameters else befall(pool)
    assert firing(history) == {name} | beside
    used = set(re.findall(r"\$labels\.(\w+)", RULES[name]["annotations"]["summary"]))
    for labels in raised(name, history):
        assert used <= {key for key, _ in labels}, "the alarm has the labels that its summary names"
    promtool_agrees(history, {name} | beside, tmp_path)


@pytest.mark.parametrize(("pulse", "name"), [(BEAT, "LaminarBeatSilent"), (CANARY, "LaminarWorkerSilent")])
def test_component_without_any_pulse_counts_as_silent(pulse: str, name: str, pool: ResourcePool) -> None:
    with connection.cursor() as db:
        db.execute("DELETE FROM api_backgroundtime WHERE name = %s", [pulse])
    assert firing(is_so(pool)) == {name}


def test_every_alarm_has_summary_severity_and_fix() -> None:
    document = (ROOT / "infra/OPERATING.md").read_text()
    for name, rule in RULES.items():
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"], name
        assert f"| `{name}` | {rule['labels']['severity']} | " in document, name
    assert document.count("| `Laminar") == len(RULES) == len(TROUBLES)


def promtool_agrees(history: History, wanted: set[str], folder: Path) -> None:
    """Prometheus itself, by the alarms that fire at the end of some interval of these scrapes."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return
    began, every_s = history[0][0], 30
    series: dict[tuple[str, Any], list[str]] = {}
    for index, (_, samples) in enumerate(history):
        for name, labels, value in ((name, *one) for name, of_name in samples.items() for one in of_name.items()):
            moved = value - began if name.endswith("_timestamp_seconds") else value
            series.setdefault((name, labels), ["_"] * len(history))[index] = repr(moved)
    tests = [
        {
            "expr": 'group by (alertname) (max_over_time(ALERTS{alertstate="firing"}[1h]))',
            "eval_time": f"{(len(history) - 1) * every_s}s",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(wanted)],
        }
    ]
    written = [
        {"series": name + "{" + ",".join(f'{label}="{text}"' for label, text in sorted(labels)) + "}",
         "values": " ".join(values)}
        for (name, labels), values in series.items()
    ]  # fmt: skip
    document = {
        "rule_files": [str(RULES_FILE)], "evaluation_interval": f"{every_s}s",
        "tests": [{"interval": f"{every_s}s", "input_series": written, "promql_expr_test": tests}],
    }  # fmt: skip
    file = folder / "rules_test.yml"
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
