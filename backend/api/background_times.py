"""Counts and durations of background tasks: summed in Postgres, since a worker has no /metrics of its own.

Invariant: counting never fails a task: a database error is logged.
"""

import logging
import time
from typing import Any

from celery.signals import task_postrun, task_prerun
from django.db import DatabaseError, InterfaceError, connection

log = logging.getLogger(__name__)

_ADD = """
INSERT INTO api_backgroundtime AS noted (name, runs, failures, seconds, longest_s, last_at)
VALUES (%(name)s, 1, %(failures)s, %(seconds)s, %(seconds)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET runs = noted.runs + 1, failures = noted.failures + excluded.failures,
    seconds = noted.seconds + excluded.seconds, longest_s = greatest(noted.longest_s, excluded.longest_s),
    last_at = excluded.last_at
"""
_began: dict[str, float] = {}


@task_prerun.connect(dispatch_uid="background_time_begins")
def _begin(task_id: str, **_: Any) -> None:
    _began[task_id] = time.monotonic()


@task_postrun.connect(dispatch_uid="background_time_ends")
def _end(task_id: str, task: Any, state: str | None = None, **_: Any) -> None:
    began = _began.pop(task_id, None)
    if began is not None:
        note_background(task.name, time.monotonic() - began, is_failure=state != "SUCCESS")


def note_background(name: str, seconds: float, *, is_failure: bool = False) -> None:
    try:
        with connection.cursor() as db:
            db.execute(_ADD, {"name": name[:80], "failures": int(is_failure), "seconds": seconds})
    except (DatabaseError, InterfaceError) as error:
        log.warning("background time not noted name=%s error=%s", name, str(error).strip())
