"""Log lines of the parts of a job: stored compressed, some hundred per row; searched backwards, or followed.

Invariants:
- no secret that the service issues is stored: keys, bearer tokens and passwords in addresses are masked before writing,
  whatever logged them;
- a job keeps at most `MOST_BYTES` of compressed lines; dropped lines are counted and shown, never lost silently;
- an answer is bounded in lines and in work: `cursor` is where to continue.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import QuerySet

from backend.jobs.models import Job
from backend.telemetry.compression import compress, decompress
from backend.telemetry.models import LogBatch
from engine.spec.facts import LogLines
from engine.spec.for_tenants import for_tenants

LEVELS: Final = ("debug", "info", "warning", "error")
MOST_BYTES: Final = 64 * 1024 * 1024
BATCHES_A_PAGE: Final = 20
MOST_BATCHES_READ: Final = 400
"""Decompressed for one answer: at most 80,000 lines."""

_BLOT: Final = "[secret]"
_SECRETS: Final = re.compile(
    r"\b(lam_[a-z]+_[A-Za-z0-9]{4,}_?)[A-Za-z0-9_-]*"
    r"|(\b(?:bearer|token|api[_-]?key|password|secret)[\"']?(?:\s*[:=]\s*|\s+)[\"']?)[^\s\"',;&]{6,}"
    r"|(://[^/\s:@]+:)[^@\s/]+(?=@)"
    r"|(\bwhsec_)[A-Za-z0-9+/=_-]+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    at: datetime
    attempt: int
    component: str
    level: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    lines: Sequence[Line]
    cursor: int
    """Everything up to here was read (forwards), or everything from here on (backwards)."""
    more: bool
    num_dropped: int
    """Lines dropped by the engine or by this service's limit, in the part that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A filter of lines; None or empty: all."""

    component: str | None = None
    least_level: str = "debug"
    text: str = ""

    def takes(self, line: Line) -> bool:
        return LEVELS.index(line.level) >= LEVELS.index(self.least_level) and self.text in line.message.lower()


def scrub(text: str) -> str:
    return _SECRETS.sub(lambda match: next((part for part in match.groups() if part), "") + _BLOT, text)


def store_lines(job: Job, attempt: int, batch: LogLines, *, cursor: int, now: datetime) -> None:
    """The caller has locked the job."""
    lines = [(line.at.isoformat(), LEVELS.index(line.level), for_tenants(scrub(line.message))) for line in batch.lines]
    content = compress(json.dumps(lines, separators=(",", ":"), ensure_ascii=False).encode())
    num_dropped = batch.num_dropped
    last = LogBatch.objects.filter(job=job).order_by("-cursor").first()
    bytes_so_far = last.bytes_so_far if last is not None else 0
    if bytes_so_far + len(content) > MOST_BYTES:
        lines, num_dropped, content = [], num_dropped + len(lines), compress(b"[]")
        if last is not None and last.num_lines == 0:  # one row counts them, however long the job runs
            LogBatch.objects.filter(pk=last.pk).update(num_dropped=last.num_dropped + num_dropped)
            return
    LogBatch.objects.create(
        job=job,
        attempt=attempt,
        component=batch.component,
        cursor=cursor,
        first_at=batch.lines[0].at if batch.lines else now,
        last_at=batch.lines[-1].at if batch.lines else now,
        highest_level=max((level for _, level, _ in lines), default=0),
        num_lines=len(lines),
        num_dropped=num_dropped,
        bytes_so_far=bytes_so_far + len(content),
        content=content,
    )


def lines_after(job: Job, cursor: int, wanted: Wanted, *, limit: int) -> Lines:
    """Follows: oldest first. Reads whole batches, so it may return slightly more lines than `limit`."""
    lines: list[Line] = []
    num_dropped, upto, more = 0, cursor, False
    for num_read, batch in enumerate(_in_pages(_batches(job, wanted), cursor, back=False)):
        if len(lines) >= limit or num_read == MOST_BATCHES_READ:
            more = True
            break
        lines += [line for line in lines_of(batch, wanted) if wanted.takes(line)]
        num_dropped, upto = num_dropped + batch.num_dropped, batch.cursor
    return Lines(lines=lines, cursor=upto, more=more, num_dropped=num_dropped)


def last_lines(job: Job, wanted: Wanted, *, tail: int, before: int | None = None) -> Lines:
    """The newest lines, in order; `before` goes further back. Reads whole batches, as above."""
    lines: list[Line] = []
    num_dropped, first, more = 0, before or 0, False
    for num_read, batch in enumerate(_in_pages(_batches(job, wanted), before, back=True)):
        if len(lines) >= tail or num_read == MOST_BATCHES_READ:
            more = True
            break
        lines = [line for line in lines_of(batch, wanted) if wanted.takes(line)] + lines
        num_dropped, first = num_dropped + batch.num_dropped, batch.cursor
    return Lines(lines=lines, cursor=first, more=more, num_dropped=num_dropped)


def batches_from(job: Job, cursor: int, wanted: Wanted) -> QuerySet[LogBatch]:
    """Batches after the cursor, oldest first."""
    return _batches(job, wanted).filter(cursor__gt=cursor).order_by("cursor")


def components_of(job: Job) -> list[str]:
    return sorted(LogBatch.objects.filter(job=job).values_list("component", flat=True).distinct())


def _batches(job: Job, wanted: Wanted) -> QuerySet[LogBatch]:
    batches = LogBatch.objects.filter(job=job)
    return batches if wanted.component is None else batches.filter(component=wanted.component)


def _in_pages(batches: QuerySet[LogBatch], cursor: int | None, *, back: bool) -> Iterator[LogBatch]:
    """Page by page: a job's lines are megabytes, and usually the first page is enough."""
    while True:
        rows = batches.order_by("-cursor" if back else "cursor")
        if cursor is not None:
            rows = rows.filter(cursor__lt=cursor) if back else rows.filter(cursor__gt=cursor)
        page = list(rows[:BATCHES_A_PAGE])
        yield from page
        if len(page) < BATCHES_A_PAGE:
            return
        cursor = page[-1].cursor


def lines_of(batch: LogBatch, wanted: Wanted) -> Iterator[Line]:
    if batch.highest_level < LEVELS.index(wanted.least_level):
        return
    for at, level, message in json.loads(decompress(batch.content)):
        yield Line(
            at=datetime.fromisoformat(at),
            attempt=batch.attempt,
            component=batch.component,
            level=LEVELS[level],
            message=message,
        )
