"""The log lines of a stream: each line of a job that passes the filters, once and in order.

A place is `812` (everything up to and including the batch with this cursor) or `812.3` (the first three lines of that
batch). Batches take their cursors under the job's lock, so none appears later before one that was sent.

Invariants:
- each line carries its place, whatever the filters: a broken stream resumes after the last complete line, and loses or
  repeats none;
- filtered lines advance the place too, so a reconnection does not read them again;
- each pull is bounded in batches and lines.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from backend.errors import FieldError, Invalid
from backend.feeds.streaming import Pulled, frame, mark
from backend.jobs.models import TERMINAL_STATES, Job
from backend.telemetry.logs.batches import Line, Wanted, batches_from, last_lines, lines_of
from backend.telemetry.models import LogBatch

LINES_AT_ONCE = 500
BATCHES_AT_ONCE = 60
_PLACE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,4}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    cursor: int
    lines: int | None = None
    """Number of lines of that batch; None: all."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises `Invalid`."""
        match = _PLACE.fullmatch(text)
        if match is None:
            wrong = FieldError(
                pointer="/header/Last-Event-ID", code="format", message="must be the `id` of an event of this stream"
            )
            raise Invalid("Last-Event-ID is not from this stream. Omit it to start anew.", errors=[wrong])
        return cls(cursor=int(match[1]), lines=int(match[2]) if match[2] else None)

    def __str__(self) -> str:
        return str(self.cursor) if self.lines is None else f"{self.cursor}.{self.lines}"

    @property
    def whole_before(self) -> int:
        """The cursor up to which all batches are complete."""
        return self.cursor if self.lines is None else self.cursor - 1


def place_of_tail(job: Job, wanted: Wanted, *, tail: int) -> Place:
    """The place after which about `tail` lines follow."""
    if tail == 0:
        return Place(cursor=Job.objects.values_list("cursor", flat=True).get(pk=job.pk))
    return Place(cursor=max(0, last_lines(job, wanted, tail=tail).cursor - 1))


class LogSource:
    def __init__(self, job: Job, place: Place, wanted: Wanted) -> None:
        self._job_id, self._place, self._wanted = job.pk, place, wanted
        self._sent_place = ""
        """The place where a client that disconnects now would resume; sent at once, even without a line."""

    def pull(self, news: Sequence[Mapping[str, Any]]) -> Pulled:
        job = Job.objects.get(pk=self._job_id)  # read first: no line is accepted after the end
        frames: list[bytes] = []
        num_read = 0
        for batch in batches_from(job, self._place.whole_before, self._wanted)[:BATCHES_AT_ONCE]:
            for place, event, line in _lines_after(batch, self._place, self._wanted):
                self._sent_place = str(place)
                frames.append(frame(event, _document(line), id=self._sent_place))
            self._place, num_read = Place(cursor=batch.cursor), num_read + 1
            if len(frames) >= LINES_AT_ONCE:
                break
        again = num_read == BATCHES_AT_ONCE or len(frames) >= LINES_AT_ONCE
        if self._sent_place != str(self._place):
            self._sent_place = str(self._place)
            frames.append(mark(self._sent_place))
        is_over = job.state in TERMINAL_STATES and not again
        if is_over:
            frames.append(frame("end", {"state": job.state}))
        return Pulled(frames=frames, again=again, is_over=is_over)


def _lines_after(batch: LogBatch, place: Place, wanted: Wanted) -> Iterator[tuple[Place, str, Line]]:
    """The lines of this batch after the place, preceded by a notice of lines dropped before it."""
    seen = place.lines if place.cursor == batch.cursor else None
    if seen is None and batch.num_dropped:
        message = f"{batch.num_dropped} lines were dropped here: the job logged too many."
        yield (
            Place(cursor=batch.cursor, lines=0),
            "dropped",
            Line(at=batch.first_at, attempt=batch.attempt, component=batch.component, level="warning", message=message),
        )
    for index, line in enumerate(lines_of(batch, wanted), start=1):
        if index > (seen or 0) and wanted.takes(line):
            yield Place(cursor=batch.cursor, lines=None if index == batch.num_lines else index), "line", line


def _document(line: Line) -> dict[str, str | int]:
    return {
        "at": line.at.isoformat(),
        "attempt": line.attempt,
        "component": line.component,
        "level": line.level,
        "message": line.message,
    }
