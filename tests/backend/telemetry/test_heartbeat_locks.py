"""A heartbeat waits for no transaction that holds its attempt's row.

Locks are held in a fixed order by events. A heartbeat that waited would fail by the database's own lock timeout.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Any, Final

import pytest
from django.db import connection, transaction

from backend.jobs.attempts.ending import end_as_reported
from backend.jobs.lifecycle import locked_job
from backend.jobs.models import JobAttempt
from backend.telemetry.intake import effects
from backend.telemetry.intake.ingest import StaleFence, ingest_facts, note_arrival, note_heartbeat
from backend.telemetry.logs.batches import store_lines
from engine.spec.control import FactBatch, Heartbeat

pytestmark = pytest.mark.django_db(transaction=True)

WITHIN_S: Final = 60.0
LINES: Final = {"type": "log_lines", "component": "driver", "lines": []}


@contextmanager
def holding(work: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Runs `work` in a thread and a connection of its own. It calls its argument where it holds what it locked, and
    continues after the block."""
    is_held, may_continue, failures = Event(), Event(), list[BaseException]()

    def hold() -> None:
        is_held.set()
        assert may_continue.wait(WITHIN_S)

    def run() -> None:
        try:
            work(hold)
        except BaseException as failure:  # noqa: BLE001  # raised below
            failures.append(failure)
        finally:
            is_held.set()
            connection.close()

    thread = Thread(target=run)
    thread.start()
    try:
        assert is_held.wait(WITHIN_S) and not failures, failures
        yield
    finally:
        may_continue.set()
        thread.join()
    assert not failures, failures


def beat(attempt: JobAttempt, *, now: datetime, turns: int = 7) -> Any:
    return note_heartbeat(attempt, Heartbeat(attempt=attempt.n, fence=attempt.fence, step=0, turns=turns), now=now)


def facts(attempt: JobAttempt, now: datetime, *bodies: dict[str, Any]) -> FactBatch:
    numbered = [{"seq": n, "at": now, "body": body} for n, body in enumerate(bodies, start=1)]
    return FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": numbered})


def test_locked_row_is_skipped(attempt: JobAttempt, now: datetime) -> None:
    def lock(hold: Callable[[], None]) -> None:
        with transaction.atomic():
            JobAttempt.objects.select_for_update().get(pk=attempt.pk)
            hold()

    with holding(lock):
        assert beat(attempt, now=now) == []
        note_arrival(attempt, now=now)
    assert beat(attempt, now=now) == []
    attempt.refresh_from_db()
    assert (attempt.last_seen_at, attempt.turns, attempt.moved_at) == (now, 7, now)


def test_heartbeat_is_noted_while_a_batch_is_being_stored(
    attempt: JobAttempt, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = now + timedelta(seconds=40)

    def ingest(hold: Callable[[], None]) -> None:
        def store_slowly(*arguments: Any, **more: Any) -> None:
            store_lines(*arguments, **more)
            hold()

        monkeypatch.setattr(effects, "store_lines", store_slowly)
        assert ingest_facts(attempt, facts(attempt, now, LINES), now=now) == 1

    with holding(ingest):
        beat(attempt, now=later)
        assert JobAttempt.objects.values_list("last_seen_at", "turns").get(pk=attempt.pk) == (later, 7)
    attempt.refresh_from_db()
    assert (attempt.acked_seq, attempt.last_seen_at, attempt.turns) == (1, later, 7), "the batch takes nothing back"


def test_heartbeat_during_the_end_is_answered_the_next_refused(attempt: JobAttempt, now: datetime) -> None:
    def end(hold: Callable[[], None]) -> None:
        with transaction.atomic():
            job = locked_job(attempt.job_id)
            end_as_reported(job, attempt, outcome="failed", failure_class="infrastructure", message="", now=now)
            hold()

    with holding(end):
        assert beat(attempt, now=now) == []
    with pytest.raises(StaleFence):
        beat(attempt, now=now)
    attempt.refresh_from_db()
    assert attempt.ended_at is not None and attempt.turns is None


def test_last_batch_is_acknowledged_with_the_end(attempt: JobAttempt, now: datetime) -> None:
    finished = {"type": "run_finished", "outcome": "failed", "failure_class": "user_code", "message": "x"}
    assert ingest_facts(attempt, facts(attempt, now, LINES, finished), now=now) == 2
    attempt.refresh_from_db()
    assert (attempt.acked_seq, attempt.last_seen_at) == (2, now) and attempt.ended_at is not None
