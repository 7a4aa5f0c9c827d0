"""The outbox: at-least-once delivery wherever a process dies, immediate if the broker is up, harmless if it is down."""

import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.conf import settings
from django.db import connection, transaction
from kombu.exceptions import OperationalError

from backend.clock import database_now
from backend.jobs import nudge
from backend.jobs.models import Job, OutboxMessage
from backend.jobs.outbox import CLAIM_LASTS, NUDGE_HEAD_START, deliver, dispatch_due, enqueue
from backend.pools.models import ResourcePool
from engine.spec.logs.log_text import JsonLine
from tests.racing import race

ROOT = Path(__file__).resolve().parents[3]


class Handled:
    """A handler that records its keys."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def __call__(self, key: str) -> None:
        self.keys.append(key)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The ids passed to the nudge after a commit."""
    batches: list[list[int]] = []
    monkeypatch.setattr("backend.jobs.outbox.publish_soon", lambda ids, subject: batches.append(list(ids)))
    return batches


def in_a_moment() -> datetime:
    return database_now() + NUDGE_HEAD_START


def write(topic: str, key: str) -> int:
    with transaction.atomic():
        enqueue(topic, key, database_now())  # type: ignore[arg-type]
    return OutboxMessage.objects.latest("id").pk


def run_elsewhere(script: str) -> int:
    """Runs in a process of its own, on this test's database."""
    database = connection.settings_dict
    url = f"postgresql://{database['USER']}:{database['PASSWORD']}@{database['HOST']}:{database['PORT']}"
    environment = os.environ | {"LAMINAR_DATABASE_URL": f"{url}/{database['NAME']}"}
    setup = "import django, os; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'backend.settings'); django.setup()\n"
    setup += "from backend.jobs.outbox import *; from backend.clock import database_now\n"
    return subprocess.run([sys.executable, "-c", setup + script], cwd=ROOT, env=environment).returncode


@pytest.mark.django_db(transaction=True)
class TestAtLeastOnce:
    def test_rollback_publishes_nothing(self, published: list[list[int]]) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            enqueue("schedule", "pool_a", database_now())
            raise ZeroDivisionError
        assert published == [] and not OutboxMessage.objects.exists()

    def test_nudge_is_sent_after_commit(self, published: list[list[int]]) -> None:
        with transaction.atomic():
            enqueue("schedule", "pool_a", database_now())
            assert published == []
        assert published == [[OutboxMessage.objects.get().pk]]

    def test_delivered_row_is_deleted_and_duplicate_is_a_no_op(self, published: list[list[int]]) -> None:
        row, handled = write("launch", "job_a"), Handled()
        for _ in range(2):
            deliver([row], {"launch": handled}, database_now())
        assert handled.keys == ["job_a"]

    def test_dispatcher_publishes_row_of_lost_nudge(self, published: list[list[int]]) -> None:
        row, sent = write("launch", "job_a"), list[Sequence[int]]()
        assert dispatch_due(database_now(), sent.append) == 0  # the nudge has a head start
        assert dispatch_due(in_a_moment(), sent.append) == 1
        assert sent == [[row]]

    def test_rows_of_one_subject_share_a_message(self, published: list[list[int]]) -> None:
        pools = [write("schedule", "pool_a") for _ in range(3)]
        other, sent, handled = write("schedule", "pool_b"), list[Sequence[int]](), Handled()
        assert dispatch_due(in_a_moment(), sent.append) == 4
        assert sorted(map(list, sent)) == [pools, [other]]
        deliver(pools, {"schedule": handled}, database_now())
        assert handled.keys == ["pool_a"] and OutboxMessage.objects.get().pk == other

    @pytest.mark.long
    def test_killed_between_claim_and_publish(self, published: list[list[int]]) -> None:
        row, sent = write("launch", "job_a"), list[Sequence[int]]()
        script = "import os\ndef die(ids): os._exit(9)\ndispatch_due(database_now() + NUDGE_HEAD_START, die)"
        assert run_elsewhere(script) == 9
        assert dispatch_due(in_a_moment(), sent.append) == 0  # claimed: a worker may be delivering it
        assert dispatch_due(in_a_moment() + CLAIM_LASTS, sent.append) == 1
        assert sent == [[row]]

    @pytest.mark.long
    def test_killed_between_effect_and_delete(self, published: list[list[int]]) -> None:
        row, sent = write("launch", "job_a"), list[Sequence[int]]()
        script = f"import os\ndeliver([{row}], {{'launch': lambda key: os._exit(9)}}, database_now())"
        assert run_elsewhere(script) == 9
        assert dispatch_due(in_a_moment(), sent.append) == 1
        assert sent == [[row]]

    def test_broker_losing_everything_only_delays(self, published: list[list[int]]) -> None:
        row, sent = write("launch", "job_a"), list[Sequence[int]]()
        now = in_a_moment()
        dispatch_due(now, lambda ids: None)  # published, then FLUSHALL
        assert dispatch_due(now + CLAIM_LASTS, sent.append) == 1 and sent == [[row]]

    def test_failing_handler_is_retried_with_backoff(self, published: list[list[int]]) -> None:
        row, now = write("launch", "job_a"), database_now()

        def fail(key: str) -> None:
            raise OSError("Ray is away")

        waits = []
        for _ in range(8):
            with pytest.raises(OSError, match="away"):
                deliver([row], {"launch": fail}, now)
            waits.append((OutboxMessage.objects.get().not_before - now).total_seconds())
        assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
        deliver([row], {"launch": Handled()}, now)
        assert not OutboxMessage.objects.exists()

    def test_late_commit_with_lower_id_is_not_skipped(
        self, published: list[list[int]], in_own_connection: Callable[..., Any]
    ) -> None:
        written, may_commit = threading.Event(), threading.Event()

        def write_slowly() -> int:
            with transaction.atomic():
                enqueue("launch", "job_slow", database_now())
                written.set()
                may_commit.wait(60)
            return OutboxMessage.objects.get(key="job_slow").pk

        with ThreadPoolExecutor(1) as threads:
            slow = threads.submit(in_own_connection(write_slowly))
            assert written.wait(60)
            late, sent, handled = write("launch", "job_fast"), list[Sequence[int]](), Handled()
            dispatch_due(in_a_moment(), sent.append)
            deliver([late], {"launch": handled}, database_now())
            may_commit.set()
            early = slow.result()
        assert early < late
        dispatch_due(in_a_moment(), sent.append)
        deliver([early], {"launch": handled}, database_now())
        assert sent == [[late], [early]] and handled.keys == ["job_fast", "job_slow"]

    def test_four_dispatchers_share_the_rows(
        self, published: list[list[int]], in_own_connection: Callable[..., Any]
    ) -> None:
        rows = [write("launch", f"job_{n}") for n in range(40)]
        sent, now = list[Sequence[int]](), in_a_moment()
        race(*[in_own_connection(lambda: dispatch_due(now, sent.append))] * 4)
        assert sorted(ids[0] for ids in sent) == rows


def app_on(port: int) -> Celery:
    app = Celery("nowhere", broker=f"redis://127.0.0.1:{port}/0", set_as_current=False)
    app.conf.broker_transport_options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    return app


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections and never answers: a broker whose machine froze."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("broker", ["closed_port", "silent_port"])
def test_request_never_waits_for_the_broker(
    broker: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nudge, "app", app_on(request.getfixturevalue(broker)))
    slowest = 0.0
    for n in range(20):
        started = time.perf_counter()
        with transaction.atomic():
            enqueue("launch", f"job_{n}", database_now())
        slowest = max(slowest, time.perf_counter() - started)
    print(f"{broker}: slowest of 20 commits {1000 * slowest:.1f} ms")
    assert slowest < 2.0  # on a busy machine; waiting for the broker would take longer
    assert dispatch_due(in_a_moment(), lambda ids: None) == 20
    nudge._forget_thread()  # its thread may still wait for the silent broker


@pytest.mark.long
def test_publishing_gives_up_in_bounded_time(monkeypatch: pytest.MonkeyPatch, silent_port: int) -> None:
    monkeypatch.setattr(nudge, "app", app_on(silent_port))
    with pytest.raises(OperationalError):
        nudge.publish_now([1])


def test_full_queue_drops_and_does_not_block(monkeypatch: pytest.MonkeyPatch, silent_port: int) -> None:
    monkeypatch.setattr(nudge, "app", app_on(silent_port))
    for n in range(3 * nudge._MOST_WAITING):  # waiting for the broker would take seconds each: longer than a test may
        nudge.publish_soon([n], f"launch job_{n}")
    nudge._forget_thread()


def test_burst_to_one_pool_takes_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is sent at once, the others together; other subjects separately; none is lost."""
    sent: queue.Queue[list[int]] = queue.Queue()
    monkeypatch.setattr(nudge, "publish_now", lambda ids: sent.put(list(ids)))
    nudge._forget_thread()
    for n in range(200):
        nudge.publish_soon([n], "schedule pool_a" if n % 2 else "schedule pool_b")
    messages: list[list[int]] = []
    while sum(map(len, messages)) < 200:
        messages.append(sent.get(timeout=60))
    assert sorted(n for ids in messages for n in ids) == list(range(200))
    assert all(len({n % 2 for n in ids}) == 1 for ids in messages) and len(messages) < 20


@pytest.mark.django_db
def test_submitting_a_job_leaves_a_row_for_its_pool(job: Job, pool: ResourcePool, now: datetime) -> None:
    row = OutboxMessage.objects.get()
    assert (row.topic, row.key) == ("schedule", pool.pk)
    assert row.not_before < database_now() + timedelta(seconds=3)


def test_log_lines_of_a_delivery_name_the_job(db: None) -> None:
    now, lines = database_now(), []
    for topic, key in (("launch", "job_1"), ("schedule", "pool_1")):
        OutboxMessage.objects.create(topic=topic, key=key, created_at=now, not_before=now)

    def act(key: str) -> None:
        record = logging.LogRecord("x", logging.INFO, __file__, 1, "did", (), None)
        lines.append(json.loads(JsonLine().format(record)))

    deliver([row.pk for row in OutboxMessage.objects.all()], {"launch": act, "schedule": act}, now)
    assert sorted(line.get("job", "") for line in lines) == ["", "job_1"]
