"""Checks background work: does beat tick, do canaries pass the queue, is the outbox delivered, and is there a recent
backup?
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from django.db import connection

from backend.accounts.models import User
from backend.clock import database_now
from backend.environment import Environment
from backend.jobs.models import OutboxMessage
from backend.operating.checks.findings import Fault, Finding, Verdict, good
from backend.pulses import AGES, LATE_AFTER_S, ages

_OVERDUE: Final = timedelta(minutes=2)  # a tick delivers undelivered messages within 20 s
_BACKUP_EVERY: Final = timedelta(hours=36)  # nightly, with some delay
_NEW: Final = timedelta(days=2)

BEAT = Fault(
    name="work.beat",
    cure="Start beat (`docker compose up -d beat`), and check its log: without it no periodic work is done.",
)
WORKER = Fault(
    name="work.worker",
    cure="Start a worker (`docker compose up -d worker`), and check its log and the broker's: canaries do not pass the "
    "queue.",
)
BEHIND = Fault(
    name="work.behind",
    cure="Launches and rounds fail or wait: check the worker's log for `outbox`, and Ray; add workers.",
)
BACKUP = Fault(
    name="work.backup_old",
    verdict=Verdict.WARNING,
    cure="Take one now (`make backup`, or its container form), and schedule it nightly. Ignore this if you use your "
    "provider's backups instead.",
)


def check_work(environment: Environment) -> Iterator[Finding]:
    known = ages()
    for part, fault in (("beat", BEAT), ("worker", WORKER)):
        age = known.get(part)
        if age is None:
            yield fault.found(f"{part} has never sent a heartbeat")
        elif age > LATE_AFTER_S:
            yield fault.found(f"{part} has sent no heartbeat for {age:.0f} s")
        else:
            yield good(f"{part} sent a heartbeat {age:.0f} s ago")
    late = OutboxMessage.objects.filter(created_at__lt=database_now() - _OVERDUE).count()
    yield (
        BEHIND.found(f"{late} outbox messages are over two minutes old") if late else good("the outbox has no backlog")
    )
    yield from _check_backups()


def _check_backups() -> Iterator[Finding]:
    with connection.cursor() as db:
        db.execute(AGES, [["backup"]])
        row = db.fetchone()
    if row is not None and (age := timedelta(seconds=float(row[1]))) <= _BACKUP_EVERY:
        yield good(f"the last backup was taken {age.total_seconds() / 3600:.0f} hours ago")
    elif row is not None:
        yield BACKUP.found(f"the last backup was taken {age.days} days ago")
    elif User.objects.filter(date_joined__lt=database_now() - _NEW).exists():
        yield BACKUP.found("no backup is recorded (a crash of Postgres also loses the record)")
