"""Log lines of a job's parts on its page: filtered, searched, followed, and read back.

Invariants:
- an answer is bounded; it tells from where to follow, and from where to go further back;
- the cursor to follow from is read before the lines: what comes meanwhile comes again, and nothing is missed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.http import QueryDict

from backend.borders.types import read_count
from backend.jobs.models import Job
from backend.pages import curl
from backend.telemetry.logs import LEVELS, Line, Wanted, components_of, last_lines, lines_after
from backend.telemetry.removal import Removed, refuse_if_logs_are_removed
from backend.telemetry.selectors import current_cursor

LINES_A_TIME: Final = 300
LONGEST_SEARCH: Final = 200
LONGEST_PART: Final = 60
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    level: str = LEVELS[0]
    """And above."""
    component: str = ""
    """Empty: every part."""
    text: str = ""

    @classmethod
    def of(cls, sent: QueryDict) -> "Asked":
        """Whatever was sent: what is no filter filters nothing."""
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
    """Of its message, each with whether it is what was searched for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLog:
    asked: Asked
    lines: Sequence[ShownLine] = ()
    follow_from: int = 0
    back_from: int | None = None
    """None: there is nothing before."""
    more: bool = False
    """There is more already to follow."""
    num_dropped: int = 0
    removed: str = ""
    """Why there is none any more."""


def log_of(job: Job, sent: QueryDict) -> ShownLog:
    """The newest lines; with `after` those since, with `before` those up to there."""
    asked, newest = Asked.of(sent), current_cursor(job)
    after, before = read_count(sent.get("after", "")), read_count(sent.get("before", ""))
    try:
        refuse_if_logs_are_removed(job)
    except Removed as removed:
        return ShownLog(asked=asked, removed=removed.detail)
    follow_from = newest
    back_from: int | None = None
    if after is not None:
        found = lines_after(job, after, asked.wanted, limit=LINES_A_TIME)
        follow_from = found.cursor if found.more else max(newest, found.cursor)
    else:
        found = last_lines(job, asked.wanted, tail=LINES_A_TIME, before=before)
        back_from = found.cursor if found.more else None
    return ShownLog(
        asked=asked,
        lines=[ShownLine(line=each, pieces=_pieces(each.message, asked.text)) for each in found.lines],
        follow_from=follow_from,
        back_from=back_from,
        more=after is not None and found.more,
        num_dropped=found.num_dropped,
    )


def log_curl(job: Job, asked: Asked) -> str:
    query = {"level": asked.level, "component": asked.component, "q": asked.text}
    return curl.get(f"/jobs/{job.pk}/logs", **{name: value for name, value in query.items() if value})


def parts_of(job: Job) -> Sequence[str]:
    return components_of(job)


def levels() -> Sequence[tuple[str, str]]:
    """Each with what choosing it shows."""
    return [(each, "everything" if each == LEVELS[0] else f"{each} and above") for each in LEVELS[:-1]] + [
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
    """As long as it was: İ has a lower case of two."""
    return "".join(low if len(low := each.lower()) == 1 else each for each in text)
