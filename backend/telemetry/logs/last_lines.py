"""The last lines of each part of an attempt, to explain its failure.

Provides the port `jobs.attempts.evidence.last_words`.

Invariants:
- errors come first: lines of a lower level are read only if no part logged an error;
- lines per part, parts and decompressed batches are limited: this runs while the job is locked.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from backend.jobs.attempts.evidence import LastLine
from backend.jobs.models import Job
from backend.telemetry.logs.batches import LEVELS, Line, Wanted, lines_of
from backend.telemetry.models import LogBatch

LINES_A_PART: Final = 4
MOST_PARTS: Final = 5
LINES_OF_ALL: Final = 8
BATCHES_READ: Final = 30
"""At worst 6,000 lines, about 20 ms."""


def read_last_lines(job: Job, attempt: int) -> list[LastLine]:
    """Oldest first."""
    batches = LogBatch.objects.filter(job=job, attempt=attempt).order_by("-cursor")
    errors = batches.filter(highest_level__gte=LEVELS.index("error"))
    lines = _limit_per_part(_read_backwards(errors[:BATCHES_READ], Wanted(least_level="error")))
    if not lines:
        lines = list(islice(_read_backwards(batches.filter(num_lines__gt=0)[:LINES_OF_ALL], Wanted()), LINES_OF_ALL))
    lines.reverse()  # keeps the order of lines with equal times
    return [
        LastLine(at=line.at, component=line.component, level=line.level, message=line.message)
        for line in sorted(lines, key=lambda line: line.at)
    ]


def _read_backwards(batches: Iterable[LogBatch], wanted: Wanted) -> Iterator[Line]:
    for batch in batches:
        yield from reversed([line for line in lines_of(batch, wanted) if wanted.takes(line)])


def _limit_per_part(newest_first: Iterator[Line]) -> list[Line]:
    by_part: dict[str, list[Line]] = {}
    for line in newest_first:
        if line.component not in by_part and len(by_part) == MOST_PARTS:
            continue
        kept = by_part.setdefault(line.component, [])
        if len(kept) < LINES_A_PART:
            kept.append(line)
    return [line for kept in by_part.values() for line in kept]
