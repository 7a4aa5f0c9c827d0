"""The work behind the pages: does beat tick, does every canary come through the queue, is what must follow done, and
was there a backup of late?
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

_OVERDUE: Final = timedelta(minutes=2)  # a tick delivers by itself what nobody took, within 20 s
_BACKUP_EVERY: Final = timedelta(hours=36)  # every night, and one night's may be late
_NEW: Final = timedelta(days=2)

BEAT = Fault(
    name="work.beat",
    cure="Start beat (`docker compose up -d beat`), and see its log: without it nothing is done at intervals.",
)
WORKER = Fault(
    name="work.worker",
    cure="Start a worker (`docker compose up -d worker`), and see its log and the broker's: canaries do not come "
    "through.",
)
BEHIND = Fault(
    name="work.behind",
    cure="Launches and rounds fail or wait: see the worker's log for `outbox`, whether Ray answers, and add workers.",
)
BACKUP = Fault(
    name="work.backup_old",
    verdict=Verdict.WARNING,
    cure="Take one now (`make backup`, or its container form), and let a timer do it every night. Where your "
    "provider's backups are used in its place, leave this as it is.",
)


def look_at_work(environment: Environment) -> Iterator[Finding]:
    known = ages()
    for part, fault in (("beat", BEAT), ("worker", WORKER)):
        age = known.get(part)
        if age is None:
            yield fault.found(f"{part} has never been heard of")
        elif age > LATE_AFTER_S:
            yield fault.found(f"{part} has not been heard of for {age:.0f} s")
        else:
            yield good(f"{part} was heard of {age:.0f} s ago")
    late = OutboxMessage.objects.filter(created_at__lt=database_now() - _OVERDUE).count()
    yield BEHIND.found(f"{late} acts wait for longer than two minutes") if late else good("nothing waits to be done")
    yield from _look_at_backups()


def _look_at_backups() -> Iterator[Finding]:
    with connection.cursor() as db:
        db.execute(AGES, [["backup"]])
        row = db.fetchone()
    if row is not None and (age := timedelta(seconds=float(row[1]))) <= _BACKUP_EVERY:
        yield good(f"the last backup was taken {age.total_seconds() / 3600:.0f} hours ago")
    elif row is not None:
        yield BACKUP.found(f"the last backup was taken {age.days} days ago")
    elif User.objects.filter(date_joined__lt=database_now() - _NEW).exists():
        yield BACKUP.found("no backup is known of (nor is one after a crash of Postgres, until the next one)")
