"""Ingests a driver's facts: each once, in order, or not at all.

Invariants:
- one transaction per batch, under the job's lock: the effects of the facts and `acked_seq` are committed together, so a
  replayed, duplicate or overlapping batch changes nothing;
- facts are accepted without gaps; a batch that starts too late is answered with the seq to resume from;
- a sign of life never waits for a lock: heartbeats skip a row that another transaction holds, which is itself a sign of
  life or the attempt's end; a batch writes that row last, however long its effects take;
- kinds, fields and values of a later release are passed over; a fact that needs them is refused, with its batch;
- the arrival of facts counts as a sign of life of their driver, before they are read;
- only the live attempt, under the job's current fence, is accepted; all others are answered to stop. An ended attempt
  still gets acknowledgements for facts that had arrived.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django.db import DataError, connection, transaction
from django.db.models import Value
from django.db.models.functions import Greatest

from backend.errors import Conflict, FieldError, Invalid
from backend.jobs.control_requests import open_requests
from backend.jobs.lifecycle import locked_job
from backend.jobs.models import JobAttempt
from backend.telemetry.intake.effects import FactEffects
from backend.telemetry.intake.passed_over import refuse_if_missing
from engine.spec.control import ControlRequest, FactBatch, Heartbeat
from engine.spec.facts import Fact, RunFinished

log = logging.getLogger(__name__)

ARRIVALS_NOTED_EVERY = timedelta(seconds=5)  # heartbeats write more often than that
_NOTE_LIFE: Final = """
UPDATE jobs_jobattempt
SET last_seen_at = greatest(last_seen_at, %(now)s),
    turns = CASE WHEN %(has_moved)s THEN %(turns)s ELSE turns END,
    moved_at = CASE WHEN %(has_moved)s THEN %(now)s ELSE moved_at END
WHERE id = (SELECT id FROM jobs_jobattempt WHERE id = %(attempt)s AND ended_at IS NULL FOR NO KEY UPDATE SKIP LOCKED)
"""


class StaleFence(Conflict):
    """This attempt has ended. Stop the driver."""

    code = "stale_fence"


class Gap(Conflict):
    """Facts are missing before this batch. Send again from the one after `acked`."""

    code = "gap"


def ingest_facts(attempt: JobAttempt, batch: FactBatch, *, now: datetime) -> int:
    """Returns the seq up to which everything is stored."""
    _validate_order(batch.facts)
    try:
        with transaction.atomic():
            return _ingest(attempt, batch, now)
    except DataError as error:  # a number beyond its column, a NUL in a key: valid for the spec, not for Postgres
        log.warning("facts refused job=%s attempt=%d error=%s", attempt.job_id, attempt.n, error)
        raise Invalid("A value in this batch is out of range.", code="out_of_range") from error


def note_arrival(attempt: JobAttempt, *, now: datetime) -> None:
    """Notes the arrival of unread facts: on a starved server it may take long until they are stored."""
    if attempt.last_seen_at is None or attempt.last_seen_at < now - ARRIVALS_NOTED_EVERY:
        _note_life(attempt, now=now)


def note_heartbeat(attempt: JobAttempt, beat: Heartbeat, *, now: datetime) -> list[ControlRequest]:
    """Returns the requests that this driver has not acknowledged."""
    if (beat.attempt, beat.fence) != (attempt.n, attempt.fence):
        raise StaleFence()
    has_moved = beat.turns is None or beat.turns != attempt.turns
    if not _note_life(attempt, now=now, turns=beat.turns, has_moved=has_moved):
        raise StaleFence()
    rows = open_requests().filter(job_id=attempt.job_id).order_by("created_at")
    return [ControlRequest.model_validate(row, from_attributes=True) for row in rows]


def _note_life(attempt: JobAttempt, *, now: datetime, turns: int | None = None, has_moved: bool = False) -> bool:
    """Returns whether the attempt is live."""
    with connection.cursor() as db:
        db.execute(_NOTE_LIFE, {"attempt": attempt.pk, "now": now, "turns": turns, "has_moved": has_moved})
        if db.rowcount == 1:
            return True
    return JobAttempt.objects.filter(pk=attempt.pk, ended_at__isnull=True).exists()


def _ingest(attempt: JobAttempt, batch: FactBatch, now: datetime) -> int:
    if (batch.attempt, batch.fence) != (attempt.n, attempt.fence):
        raise StaleFence()
    job = locked_job(attempt.job_id)
    attempt.refresh_from_db(fields=["acked_seq", "ended_at"])
    new = [fact for fact in batch.facts if fact.seq > attempt.acked_seq]
    if not new:
        return attempt.acked_seq
    if attempt.ended_at is not None or attempt.fence != job.fence:
        raise StaleFence()
    if new[0].seq != attempt.acked_seq + 1:
        raise Gap(acked=attempt.acked_seq)
    for fact in new:
        refuse_if_missing(fact)
    end = new[-1] if isinstance(new[-1].body, RunFinished) else None
    effects = FactEffects(job, attempt, now=now)
    for fact in new if end is None else new[:-1]:
        effects.apply(fact)
    effects.store()
    # After all that takes time, since heartbeats write this row too; before the end, since an ended attempt is never
    # written again. A heartbeat may have arrived meanwhile.
    seen_at = Greatest("last_seen_at", Value(now))
    JobAttempt.objects.filter(pk=attempt.pk).update(acked_seq=new[-1].seq, last_seen_at=seen_at)
    if end is not None:
        effects.apply(end)
    return new[-1].seq


def _validate_order(facts: Sequence[Fact]) -> None:
    first = facts[0].seq
    for index, fact in enumerate(facts):
        if fact.seq != first + index:
            error = FieldError(pointer=f"/facts/{index}/seq", code="disorder", message=f"expected {first + index}")
            raise Invalid("Facts of a batch must be numbered consecutively.", code="disorder", errors=[error])
        if isinstance(fact.body, RunFinished) and index != len(facts) - 1:
            error = FieldError(pointer=f"/facts/{index}", code="disorder", message="nothing may follow run_finished")
            raise Invalid("RunFinished must be the last fact of an attempt.", code="disorder", errors=[error])
