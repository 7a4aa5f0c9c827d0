"""The outbox: actions that must follow a transaction, written in that transaction.

    enqueue ──row──▶ Postgres ──commit──▶ nudge ──Celery──▶ deliver([id]) ──handler done──▶ row deleted
                        ▲                                        │ failed: due again later
                        └──── dispatch_due, every 2 s: rows that are due and not delivered

Invariants:
- a row is deleted only after its handler has returned, so each is delivered at least once wherever a process dies, even
  if the broker loses everything; handlers are idempotent;
- rows are claimed by SKIP LOCKED and named by id, never by "all up to id N": a late commit with a lower id is neither
  skipped nor deleted unprocessed;
- the dispatcher itself delivers a row that is OVERDUE although it was published: with every broker message lost,
  everything still happens, later;
- the nudge is a shortcut. A request never waits for the broker, and a broker that is down only causes delay.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Literal

from django.db import transaction
from django.db.models import F

from backend.jobs.models import OutboxMessage
from backend.jobs.nudge import publish_soon
from backend.jobs.row_batch import Statement, execute_batch
from engine.spec.logs.log_subject import about

log = logging.getLogger(__name__)

Topic = Literal["schedule", "launch", "stop", "validate", "evidence", "trace"]
Handler = Callable[[str], None]
"""Takes the key: a pool's id for "schedule", a job's id for the others."""
Publish = Callable[[Sequence[int]], None]

NUDGE_HEAD_START = timedelta(seconds=2)
"""The time that the dispatcher leaves a fresh row to its nudge; otherwise half of all deliveries would be doubled."""
# By the database's clock: a web server with a wrong clock delays nothing.
_ENQUEUE = """INSERT INTO jobs_outboxmessage (topic, key, created_at, attempts, not_before)
VALUES (%s, %s, %s, 0, statement_timestamp() + %s) RETURNING id"""
CLAIM_LASTS = timedelta(seconds=15)
"""Then a published row without a finished handler is due again. A delivery takes much less."""
CLAIM_LIMIT = 100
OVERDUE = timedelta(seconds=20)
"""Longer than a nudge and one publication take: by then messages were lost, or no worker takes them."""
MOST_OVERDUE = 20  # per tick; the next tick continues
LONGEST_BACKOFF_S = 30


def enqueue(topic: Topic, key: str, now: datetime) -> None:
    """Runs in the caller's transaction. Delivered soon after its commit, and never after a rollback."""
    nudge_at_commit(execute_batch([message_of(topic, key, now)]), topic, key)


def message_of(topic: Topic, key: str, now: datetime) -> Statement:
    """Only the statement, to run in a batch with others; pass its row to `nudge_at_commit`."""
    return _ENQUEUE, [topic, key, now, NUDGE_HEAD_START]


def nudge_at_commit(row: tuple[int], topic: Topic, key: str) -> None:
    transaction.on_commit(lambda: publish_soon(row, f"{topic} {key}"), robust=True)


def dispatch_due(now: datetime, publish: Publish) -> int:
    """Publishes due rows, one message per (topic, key). A row whose message is lost becomes due again later."""
    with transaction.atomic():
        due = OutboxMessage.objects.filter(not_before__lte=now).order_by("not_before")
        claimed = list(due.select_for_update(skip_locked=True)[:CLAIM_LIMIT])
        ids = [message.pk for message in claimed]
        OutboxMessage.objects.filter(pk__in=ids).update(not_before=now + CLAIM_LASTS)
    for batch in _by_subject(claimed):
        publish(batch)
    return len(claimed)


def deliver_overdue(now: datetime, handlers: Mapping[str, Handler], has_time: Callable[[], bool]) -> int:
    """Delivers one row after the other while there is time. A failure is logged, and its row is retried later."""
    with transaction.atomic():
        late = OutboxMessage.objects.filter(not_before__lte=now, created_at__lte=now - OVERDUE).order_by("not_before")
        claimed = list(late.select_for_update(skip_locked=True)[:MOST_OVERDUE])
        ids = [message.pk for message in claimed]
        OutboxMessage.objects.filter(pk__in=ids).update(not_before=now + CLAIM_LASTS)
    num_delivered = 0
    for batch in _by_subject(claimed):
        if not has_time():
            break
        try:
            deliver(batch, handlers, now)
        except Exception as error:  # noqa: BLE001 - a failing handler must not block the others
            log.warning("overdue delivery failed ids=%s error=%s", batch, error)
        num_delivered += len(batch)
    return num_delivered


def deliver(ids: Sequence[int], handlers: Mapping[str, Handler], now: datetime) -> None:
    """Missing rows were delivered by another process. A failure is raised again after its row is rescheduled."""
    messages = list(OutboxMessage.objects.filter(pk__in=ids))
    for subject in _by_subject(messages):
        first = next(message for message in messages if message.pk == subject[0])
        try:
            with nullcontext() if first.topic == "schedule" else about(job=first.key):
                handlers[first.topic](first.key)
        except Exception as error:
            _reschedule(subject, first, now, error)
            raise
        OutboxMessage.objects.filter(pk__in=subject).delete()


def _by_subject(messages: Sequence[OutboxMessage]) -> list[list[int]]:
    """Groups rows by topic and key: a hundred submissions to one pool need one scheduling round."""
    subjects: dict[tuple[str, str], list[int]] = defaultdict(list)
    for message in messages:
        subjects[message.topic, message.key].append(message.pk)
    return list(subjects.values())


def _reschedule(ids: Sequence[int], first: OutboxMessage, now: datetime, error: Exception) -> None:
    delay = timedelta(seconds=min(2**first.attempts, LONGEST_BACKOFF_S))
    OutboxMessage.objects.filter(pk__in=ids).update(attempts=F("attempts") + 1, not_before=now + delay)
    log.warning("delivery failed topic=%s key=%s retry_in_s=%d error=%s", first.topic, first.key, delay.seconds, error)
