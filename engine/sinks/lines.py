"""Log lines on their way into facts: a bounded keeper behind Python's logging in every process, and a sink that ships
the driver's own.

Invariants:
- keeping a line never waits and never fails; a line beyond the rate or the room is counted, not kept;
- a keeper hands out each line once;
- nothing here logs, or it would hear itself.
"""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from engine.sinks.port import EventSink
from engine.spec.facts import LONGEST_LINE, MAX_LINES, FactBody, LogLevel, LogLines, RunFinished
from engine.spec.facts import LogLine as Line
from engine.spec.for_tenants import for_tenants

MOST_KEPT: Final = 2_000
LINES_A_SECOND: Final = 50.0  # a job that says more says nothing; its first lines of each second are kept
BURST: Final = 500.0  # a traceback of every rank, a start
SHIP_EVERY_S: Final = 2.0
# What facts refuse: control characters but for tab and newline, and halves of surrogate pairs.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesSaid:
    """The lines that a component wrote since it was asked before."""

    component: str
    lines: tuple[Line, ...]
    num_dropped: int


class LineKeeper(logging.Handler):
    """A keeper of lines: any thread writes, one takes."""

    def __init__(self, component: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.INFO)
        self._component, self._clock = component.replace("/", "-"), clock
        self._kept: deque[Line] = deque()
        self._num_dropped = 0
        self._allowance, self._allowed_at = BURST, clock()
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        with self._guard:
            if not self._may_keep():
                self._num_dropped += 1
                return
        try:
            line = _line(record)
        except (TypeError, ValueError):  # arguments that do not fit the message: the stream's handler says so
            return
        with self._guard:
            self._kept.append(line)

    def take(self) -> LinesSaid | None:
        """At most what one fact holds; the rest comes with the next."""
        with self._guard:
            if not self._kept and not self._num_dropped:
                return None
            lines = tuple(self._kept.popleft() for _ in range(min(len(self._kept), MAX_LINES)))
            num_dropped, self._num_dropped = self._num_dropped, 0
        return LinesSaid(component=self._component, lines=lines, num_dropped=num_dropped)

    def _may_keep(self) -> bool:
        now = self._clock()
        self._allowance = min(BURST, self._allowance + (now - self._allowed_at) * LINES_A_SECOND)
        self._allowed_at = now
        if self._allowance < 1.0 or len(self._kept) >= MOST_KEPT:
            return False
        self._allowance -= 1.0
        return True


class LineShippingSink:
    """A sink that puts the keeper's lines before whatever is recorded, every few seconds and at the end."""

    def __init__(self, sink: EventSink, keeper: LineKeeper, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink, self._keeper, self._clock = sink, keeper, clock
        self._shipped_at = clock()

    def record(self, body: FactBody) -> None:
        is_last = isinstance(body, RunFinished)
        if is_last or self._clock() - self._shipped_at >= SHIP_EVERY_S:
            self._shipped_at = self._clock()
            while (said := self._keeper.take()) is not None:
                self._sink.record(lines_fact(said))
        self._sink.record(body)

    def close(self, timeout_s: float) -> bool:
        return self._sink.close(timeout_s)


def lines_fact(said: LinesSaid) -> LogLines:
    return LogLines(component=said.component, lines=list(said.lines), num_dropped=said.num_dropped)


_WORDS: Final = logging.Formatter()  # the message, and a traceback behind it


def _line(record: logging.LogRecord) -> Line:
    level: LogLevel = "error"
    if record.levelno < logging.ERROR:
        level = "warning" if record.levelno >= logging.WARNING else "info"
        level = "debug" if record.levelno < logging.INFO else level
    said = for_tenants(_UNPRINTABLE.sub("\ufffd", _WORDS.format(record)))  # before it is cut, or half a path is left
    if len(said) > LONGEST_LINE:  # of a traceback the end says what happened
        half = LONGEST_LINE // 2 - 2
        said = f"{said[:half]} … {said[-half:]}"
    return Line(at=datetime.fromtimestamp(record.created, UTC), level=level, message=said)
