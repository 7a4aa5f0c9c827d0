"""Detects whether the database was restored to an earlier time, before any attempt begins that may exist already.

    pulse of the mark > pulse of the row         restored under a running site: a snapshot, a dump into the same server
    another Postgres, or another timeline        restored elsewhere, to a point in time, or failed over to a standby

Invariants:
- every attempt begins after this check, in the same transaction: no fence is given twice, however the restore was done;
- a generation is the time of its raise, in seconds, and higher than the one before: two restores of one backup get
  different ones, and no job begins enough attempts for its fence to reach a later generation;
- a fence is at least the generation under which it was given, and below every later one;
- an unnecessary raise is harmless: it only makes numbers larger.
"""

import logging
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db import NotSupportedError, ProgrammingError, connection, transaction

from backend.clock import database_now
from backend.jobs.generation.mark import Mark, read_mark, write_mark
from backend.jobs.models import Generation

log = logging.getLogger(__name__)

COUNTED_FROM: Final = datetime(2026, 1, 1, tzinfo=UTC)  # the 31 bits of a fence last until 2094

# Identifies the server, its timeline and the database. Failover to a standby and a restore to a point in time begin a
# new timeline; pg_control_checkpoint() would show it only after the next checkpoint.
_CLUSTER: Final = """
SELECT (SELECT system_identifier::text FROM pg_control_system())
    || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
    || '/' || (SELECT oid::text FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    mark: Mark
    """The mark as stored in the database."""
    cluster: str
    """The server at the last check; empty: never checked."""
    cluster_now: str


def present_generation() -> Mark:
    """The current generation, raised if necessary, in the caller's transaction."""
    seen = _look()
    why = restore_reason(seen, read_mark())
    return raise_generation(why, only_if_put_back=True) if why else seen.mark


def generation_number() -> int:
    """The number as last raised; 0: never."""
    return Generation.objects.filter(pk=1).values_list("number", flat=True).first() or 0


def restore_reason(seen: Seen, mark: Mark | None) -> str:
    """Empty if the database was not restored. A mark of another installation is ignored."""
    if seen.cluster and seen.cluster != seen.cluster_now:
        return f"Postgres was {seen.cluster} and is {seen.cluster_now} (server/timeline/database)"
    if mark is not None and mark.site == seen.mark.site and mark.pulse > seen.mark.pulse:
        return f"{mark.pulse - seen.mark.pulse} pulses are missing in the database"
    return ""


@transaction.atomic
def raise_generation(reason: str, *, only_if_put_back: bool = False) -> Mark:
    Generation.objects.select_for_update().get(pk=1)
    seen, mark = _look(), read_mark()
    if only_if_put_back and not restore_reason(seen, mark):
        return seen.mark  # another process has just raised it
    now = database_now()
    known = mark if mark is not None and mark.site == seen.mark.site else seen.mark
    moment = int((now - COUNTED_FROM).total_seconds())
    number = max(moment, seen.mark.number + 1, known.number + 1)
    pulse = max(seen.mark.pulse, known.pulse) + 1
    Generation.objects.filter(pk=1).update(
        number=number, pulse=pulse, cluster=seen.cluster_now, raised_at=now, reason=reason[:200]
    )
    log.error("database restored to an earlier time: generation=%d reason=%s", number, reason)
    raised = Mark(site=seen.mark.site, number=number, pulse=pulse)
    transaction.on_commit(lambda: write_mark(raised))
    return raised


@transaction.atomic
def keep_mark() -> None:
    """Runs every few seconds: increments the pulse, in the row and in the mark."""
    present_generation()
    seen = _look()
    row = Generation.objects.select_for_update().get(pk=1)
    Generation.objects.filter(pk=1).update(pulse=row.pulse + 1, cluster=seen.cluster_now)
    mark = Mark(site=row.site, number=row.number, pulse=row.pulse + 1)
    transaction.on_commit(lambda: write_mark(mark))


def _look() -> Seen:
    row = Generation.objects.filter(pk=1).first()
    if row is None:  # an emptied database is a new installation
        Generation.objects.bulk_create([Generation(site=secrets.token_hex(16))], ignore_conflicts=True)
        row = Generation.objects.get(pk=1)
    mark = Mark(site=row.site, number=row.number, pulse=row.pulse)
    return Seen(mark=mark, cluster=row.cluster, cluster_now=_cluster() or row.cluster)


def _cluster() -> str:
    """Empty if the server does not reveal it, as some hosted ones. Then only the pulses detect a restore."""
    try:
        with transaction.atomic(), connection.cursor() as db:
            db.execute(_CLUSTER)
            row: tuple[str] = db.fetchone()
    except (ProgrammingError, NotSupportedError) as error:
        log.warning("cannot identify the Postgres server: %s", str(error).strip())
        return ""
    return row[0]
