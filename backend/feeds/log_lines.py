"""The log lines of a stream: every line of a job that the filters take, once and in order.

A place is `812` (all of the batch with that cursor, and of those before it, was looked at) or `812.3` (of that batch,
the first three lines). Batches take their cursors under the job's lock, so none appears later behind one that was told.

Invariants:
- each line carries its place, whatever the filters: a stream that broke goes on after the last whole one, no line is
  lost and none comes twice;
- lines that the filters leave out move the place on too, so a reconnection does not look at them again;
- one look is bounded in batches and lines.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from backend.errors import FieldError, Invalid
from backend.feeds.streaming import Pulled, frame, mark
from backend.jobs.models import TERMINAL_STATES, Job
from backend.telemetry.logs import Line, Wanted, batches_from, last_lines, lines_of
from backend.telemetry.models import LogBatch

LINES_AT_ONCE = 500
BATCHES_AT_ONCE = 60
_PLACE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,4}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    cursor: int
    lines: int | None = None
    """So many of that batch; None: all of it."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises `Invalid`."""
        found = _PLACE.fullmatch(text)
        if found is None:
            wrong = FieldError(pointer="/header/Last-Event-ID", code="format", message="an `id` of this stream")
            raise Invalid("Last-Event-ID is no place in this stream.", errors=[wrong])
        return cls(cursor=int(found[1]), lines=int(found[2]) if found[2] else None)

    def __str__(self) -> str:
        return str(self.cursor) if self.lines is None else f"{self.cursor}.{self.lines}"

    @property
    def whole_before(self) -> int:
        """Everything up to this cursor was looked at."""
        return self.cursor if self.lines is None else self.cursor - 1


def place_of_tail(job: Job, wanted: Wanted, *, tail: int) -> Place:
    """From where about so many lines are left to tell."""
    if tail == 0:
        return Place(cursor=Job.objects.values_list("cursor", flat=True).get(pk=job.pk))
    return Place(cursor=max(0, last_lines(job, wanted, tail=tail).cursor - 1))


class LogSource:
    def __init__(self, job: Job, place: Place, wanted: Wanted) -> None:
        self._job_id, self._place, self._wanted = job.pk, place, wanted
        self._told_place = ""
        """The place with which a client cut off now would come back; it is told one at once, even without a line."""

    def pull(self, news: Sequence[Mapping[str, Any]]) -> Pulled:
        job = Job.objects.get(pk=self._job_id)  # first: no line is let in after the end
        frames: list[bytes] = []
        num_read = 0
        for batch in batches_from(job, self._place.whole_before, self._wanted)[:BATCHES_AT_ONCE]:
            for place, event, line in _told(batch, self._place, self._wanted):
                self._told_place = str(place)
                frames.append(frame(event, _document(line), id=self._told_place))
            self._place, num_read = Place(cursor=batch.cursor), num_read + 1
            if len(frames) >= LINES_AT_ONCE:
                break
        again = num_read == BATCHES_AT_ONCE or len(frames) >= LINES_AT_ONCE
        if self._told_place != str(self._place):
            self._told_place = str(self._place)
            frames.append(mark(self._told_place))
        is_over = job.state in TERMINAL_STATES and not again
        if is_over:
            frames.append(frame("end", {"state": job.state}))
        return Pulled(frames=frames, again=again, is_over=is_over)


def _told(batch: LogBatch, place: Place, wanted: Wanted) -> Iterator[tuple[Place, str, Line]]:
    """Of this batch, everything after the place: what was left out before it, then its lines."""
    seen = place.lines if place.cursor == batch.cursor else None
    if seen is None and batch.num_dropped:
        message = f"{batch.num_dropped} lines were left out here: there were too many."
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
