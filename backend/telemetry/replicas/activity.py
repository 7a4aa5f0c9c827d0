"""Activity of replicas: stored as reported, read as spans or, for too many spans, as shares of time.

Invariants:
- a fact's spans are stored compressed in one row, and their seconds are added to each replica's minutes in the same
  transaction: both forms agree;
- reading costs at most `MOST_SPANS` decompressed spans or, beyond, one sum over minutes.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connection
from django.db.models import Sum

from backend.jobs.models import Job
from backend.telemetry.compression import compress, decompress
from backend.telemetry.models import ReplicaActivity
from backend.telemetry.replicas.states import states_of
from engine.spec.facts import ReplicasObserved

MOST_SPANS: Final = 5_000
MOST_CELLS: Final = 5_000
DOINGS: Final = ("decode", "prefill", "environment", "weights", "move", "idle")
MINUTE: Final = timedelta(minutes=1)
LONGEST_S: Final = 3_600.0
"""A fact covers seconds; spans that claim to be older than an hour are cut."""

_ADD_MINUTES: Final = """
INSERT INTO telemetry_replicaminute (job_id, attempt, minute, replica, doing, seconds)
SELECT %s, %s, minute, replica, doing, seconds
FROM unnest(%s::timestamptz[], %s::int[], %s::text[], %s::float8[]) AS new (minute, replica, doing, seconds)
ON CONFLICT (job_id, minute, attempt, replica, doing)
    DO UPDATE SET seconds = telemetry_replicaminute.seconds + excluded.seconds
"""

_CELLS: Final = """
SELECT to_timestamp(floor(extract(epoch FROM minute) / %(width)s) * %(width)s), attempt, replica, doing, sum(seconds)
FROM telemetry_replicaminute
WHERE job_id = %(job)s AND minute >= %(since)s AND minute < %(until)s
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""

_EXTENT: Final = """
SELECT min(minute), max(minute) + interval '1 minute', count(DISTINCT replica), count(DISTINCT attempt)
FROM telemetry_replicaminute WHERE job_id = %(job)s AND minute >= %(since)s AND minute < %(until)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpan:
    attempt: int
    replica: int
    incarnation: int
    version: int
    doing: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of the timeline: seconds of one activity of one replica in a stretch of time."""

    attempt: int
    replica: int
    doing: str
    start: datetime
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTimeline:
    """A timeline in one of two forms; `cell_s` is the length of a cell, 0 for spans."""

    spans: Sequence[ReplicaSpan] = ()
    cells: Sequence[Cell] = ()
    cell_s: int = 0


def store_activity(job: Job, attempt: int, observed: ReplicasObserved, *, at: datetime) -> None:
    """The caller has locked the job."""
    replicas = [
        [
            each.replica,
            each.incarnation,
            each.version,
            [[DOINGS.index(span.doing), round(span.start_s, 3), round(span.end_s, 3)] for span in each.spans],
        ]
        for each in observed.replicas
    ]
    if not replicas:
        return
    starts = [span.start_s for each in observed.replicas for span in each.spans]
    ReplicaActivity.objects.create(
        job=job,
        attempt=attempt,
        since=at + timedelta(seconds=max(min(starts, default=0.0), -LONGEST_S)),
        until=at,
        num_spans=len(starts),
        content=compress(json.dumps([at.timestamp(), replicas], separators=(",", ":")).encode()),
        num_replicas=observed.num_replicas,
        num_states=len(replicas),
        states=states_of(observed, at),
    )
    _add_minutes(job, attempt, observed, at)


def _add_minutes(job: Job, attempt: int, observed: ReplicasObserved, at: datetime) -> None:
    seconds: dict[tuple[datetime, int, str], float] = defaultdict(float)
    for each in observed.replicas:
        for span in each.spans:
            start = at + timedelta(seconds=max(span.start_s, -LONGEST_S))
            end = at + timedelta(seconds=max(span.end_s, -LONGEST_S))
            for minute, part_s in _by_minute(start, end):
                seconds[minute, each.replica, span.doing] += part_s
    if not seconds:
        return
    keys = list(seconds)
    columns: list[list[Any]] = [[key[index] for key in keys] for index in range(3)]
    with connection.cursor() as db:
        db.execute(_ADD_MINUTES, [job.pk, attempt, *columns, list(seconds.values())])


def _by_minute(start: datetime, end: datetime) -> Iterator[tuple[datetime, float]]:
    while start < end:
        minute = start.replace(second=0, microsecond=0)
        upto = min(end, minute + MINUTE)
        yield minute, (upto - start).total_seconds()
        start = upto


def replica_timeline(job: Job, since: datetime, until: datetime) -> ReplicaTimeline:
    """The timeline in [since, until), clipped."""
    rows = ReplicaActivity.objects.filter(job=job, until__gt=since, since__lt=until)
    num_spans = rows.aggregate(total=Sum("num_spans"))["total"] or 0
    if num_spans > MOST_SPANS or (job.is_terminal and not ReplicaActivity.objects.filter(job=job).exists()):
        return _cells(job, since, until)  # too many, or deleted by retention
    spans: list[ReplicaSpan] = []
    for row in rows.order_by("until", "id"):
        spans += _spans(row, since, until)
    return ReplicaTimeline(spans=sorted(spans, key=lambda span: (span.attempt, span.replica, span.start)))


def _spans(row: ReplicaActivity, since: datetime, until: datetime) -> Iterator[ReplicaSpan]:
    moment, replicas = json.loads(decompress(row.content))
    at = datetime.fromtimestamp(moment, UTC)
    for replica, incarnation, version, spans in replicas:
        for doing, start_s, end_s in spans:
            start = max(since, at + timedelta(seconds=max(start_s, -LONGEST_S)))
            end = min(until, at + timedelta(seconds=max(end_s, -LONGEST_S)))
            if start < end:
                yield ReplicaSpan(
                    attempt=row.attempt,
                    replica=replica,
                    incarnation=incarnation,
                    version=version,
                    doing=DOINGS[doing],
                    start=start,
                    end=end,
                )


def _cells(job: Job, since: datetime, until: datetime) -> ReplicaTimeline:
    """Whole minutes; several minutes per cell if the answer would be too long."""
    values: dict[str, Any] = {"job": job.pk, "since": since - MINUTE, "until": until}
    with connection.cursor() as db:
        db.execute(_EXTENT, values)
        first, last, num_replicas, num_attempts = db.fetchone()
        if first is None:
            return ReplicaTimeline()
        most_columns = max(1, MOST_CELLS // (num_replicas * num_attempts * len(DOINGS)) - 1)
        num_minutes = (last - first) / MINUTE
        width = 60 * max(1, -(-int(num_minutes) // most_columns))
        db.execute(_CELLS, values | {"width": width})
        cells = [
            Cell(start=start, attempt=attempt, replica=replica, doing=doing, seconds=round(seconds, 3))
            for start, attempt, replica, doing, seconds in db.fetchall()
        ]
    return ReplicaTimeline(cells=cells, cell_s=width)
