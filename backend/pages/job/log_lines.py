"""Log lines of a job's parts: filter, search, follow, and earlier lines.

Invariants:
- a response is bounded, and has the cursors for newer and for older lines;
- the cursor for newer lines is read before the lines: lines written meanwhile may repeat, but none is missed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.http import QueryDict

from backend.borders.types import read_count
from backend.jobs.models import Job
from backend.pages import curl
from backend.telemetry.logs.batches import LEVELS, Line, Wanted, components_of, last_lines, lines_after
from backend.telemetry.removal import Removed, refuse_if_logs_are_removed
from backend.telemetry.selectors import current_cursor

LINES_A_TIME: Final = 300
LONGEST_SEARCH: Final = 200
LONGEST_PART: Final = 60
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    level: str = LEVELS[0]
    """This level and above."""
    component: str = ""
    """Empty: all parts."""
    text: str = ""

    @classmethod
    def of(cls, sent: QueryDict) -> "Asked":
        """Invalid filters are ignored."""
        level = sent.get("level", "")
        return cls(
            level=level if level in LEVELS else LEVELS[0],
            component=_UNPRINTABLE.sub("", sent.get("of", ""))[:LONGEST_PART],
            text=_UNPRINTABLE.sub("", sent.get("q", "")).strip()[:LONGEST_SEARCH],
        )

    @property
    def wanted(self) -> Wanted:
        return Wanted(component=self.component or None, least_level=self.level, text=self.text.lower())

    @property
    def is_filter(self) -> bool:
        return self != Asked()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLine:
    line: Line
    pieces: Sequence[tuple[str, bool]]
    """Pieces of its message, each with whether it matches the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLog:
    asked: Asked
    lines: Sequence[ShownLine] = ()
    follow_from: int = 0
    back_from: int | None = None
    """None: there are no earlier lines."""
    more: bool = False
    """More lines are available now."""
    num_dropped: int = 0
    removed: str = ""
    """Why the log was removed."""


def log_of(job: Job, sent: QueryDict) -> ShownLog:
    """The newest lines; with `after` the lines since, with `before` the lines up to there."""
    asked, newest = Asked.of(sent), current_cursor(job)
    after, before = read_count(sent.get("after", "")), read_count(sent.get("before", ""))
    try:
        refuse_if_logs_are_removed(job)
    except Removed as removed:
        return ShownLog(asked=asked, removed=removed.detail)
    follow_from = newest
    back_from: int | None = None
    if after is not None:
        log = lines_after(job, after, asked.wanted, limit=LINES_A_TIME)
        follow_from = log.cursor if log.more else max(newest, log.cursor)
    else:
        log = last_lines(job, asked.wanted, tail=LINES_A_TIME, before=before)
        back_from = log.cursor if log.more else None
    return ShownLog(
        asked=asked,
        lines=[ShownLine(line=each, pieces=_pieces(each.message, asked.text)) for each in log.lines],
        follow_from=follow_from,
        back_from=back_from,
        more=after is not None and log.more,
        num_dropped=log.num_dropped,
    )


def log_curl(job: Job, asked: Asked) -> str:
    query = {"level": asked.level, "component": asked.component, "q": asked.text}
    return curl.get(f"/jobs/{job.pk}/logs", **{name: value for name, value in query.items() if value})


def parts_of(job: Job) -> Sequence[str]:
    return components_of(job)


def levels() -> Sequence[tuple[str, str]]:
    """Each level with its label."""
    return [(each, "all levels" if each == LEVELS[0] else f"{each} and above") for each in LEVELS[:-1]] + [
        (LEVELS[-1], "errors only")
    ]


def _pieces(message: str, searched: str) -> Sequence[tuple[str, bool]]:
    if not searched:
        return [(message, False)]
    within, sought, pieces, at = _lowered(message), _lowered(searched), list[tuple[str, bool]](), 0
    while (found := within.find(sought, at)) >= 0:
        end = found + len(sought)
        pieces += [(message[at:found], False), (message[found:end], True)]
        at = end
    return [(text, is_sought) for text, is_sought in [*pieces, (message[at:], False)] if text]


def _lowered(text: str) -> str:
    """Lower case of the same length: the lower case of İ has two characters."""
    return "".join(low if len(low := each.lower()) == 1 else each for each in text)
