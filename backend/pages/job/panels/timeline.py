"""A job's history as a bar: one segment per state, with marks for events.

Invariant: segments follow the events' times without gaps; only a segment too short to be seen is drawn wider. The last
one grows in the browser (js/pages/timeline.js) by the same rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from backend.jobs.models import TERMINAL_STATES, JobEvent
from backend.pages.job.panels.folded_texts import headline_of

_MARKS = {"fault_detected": "fault", "checkpoint_saved": "checkpoint", "evaluated": "evaluation"}
_MIN_WIDTH = 0.8  # per cent


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    state: str
    since: datetime
    lasted: timedelta
    open: bool
    x: float = 0.0
    """Per cent, like `width`."""
    width: float = 0.0

    @property
    def seconds(self) -> float:
        return self.lasted.total_seconds()

    @property
    def final(self) -> bool:
        return self.state in TERMINAL_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    kind: str
    at: datetime
    message: str
    seconds: float
    """From the start of the bar."""
    x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    stretches: Sequence[Stretch]
    marks: Sequence[Mark]

    @property
    def drawn(self) -> list[Stretch]:
        return [each for each in self.stretches if not each.final]


def timeline_of(events: Sequence[JobEvent], *, now: datetime) -> Timeline:
    """`events` oldest first."""
    changes = [event for event in events if event.to_state]
    if not changes:
        return Timeline(stretches=(), marks=())
    ends = [event.at for event in changes[1:]] + [max(now, changes[-1].at)]
    stretches = [
        Stretch(state=event.to_state, since=event.at, lasted=end - event.at, open=index == len(changes) - 1)
        for index, (event, end) in enumerate(zip(changes, ends, strict=True))
    ]
    first = changes[0].at
    last = changes[-1].at if changes[-1].to_state in TERMINAL_STATES else ends[-1]
    whole = max((last - first).total_seconds(), 1e-3)
    marks = [
        Mark(
            kind=_MARKS[event.type],
            at=event.at,
            message=headline_of(event.message) or event.type.replace("_", " "),
            seconds=(event.at - first).total_seconds(),
            x=min(99.7, max(0.3, 100 * (event.at - first).total_seconds() / whole)),
        )
        for event in events
        if event.type in _MARKS and first <= event.at
    ]
    return Timeline(stretches=_laid_out(stretches), marks=marks)


def _laid_out(stretches: Sequence[Stretch]) -> list[Stretch]:
    drawn = [each for each in stretches if each.state not in TERMINAL_STATES]
    whole = sum(each.lasted.total_seconds() for each in drawn) or 1.0
    widths = [max(_MIN_WIDTH, 100 * each.lasted.total_seconds() / whole) for each in drawn]
    scale, x, laid = 100 / (sum(widths) or 1.0), 0.0, []
    for each, width in zip(drawn, widths, strict=True):
        laid.append(
            Stretch(state=each.state, since=each.since, lasted=each.lasted, open=each.open, x=x, width=width * scale)
        )
        x += width * scale
    return laid + [each for each in stretches if each.state in TERMINAL_STATES]
