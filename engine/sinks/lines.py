"""Turns log lines into facts: a bounded buffer behind Python's logging in every process, and a sink that ships the
driver's own lines.

Invariants:
- keeping a line never blocks and never fails; a line beyond the rate or the capacity is counted, not kept;
- a keeper returns each line once;
- no code here logs, as it would capture its own lines.
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
LINES_A_SECOND: Final = 50.0  # more is unreadable; the first lines of each second are kept
BURST: Final = 500.0  # a traceback of every rank, a start
SHIP_EVERY_S: Final = 2.0
# Characters that facts refuse: control characters except tab and newline, and halves of surrogate pairs.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenLines:
    """The lines of a component since the last `take`."""

    component: str
    lines: tuple[Line, ...]
    num_dropped: int


class LineKeeper(logging.Handler):
    """A buffer of lines: any thread writes, one thread takes."""

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
            line = _to_line(record)
        except (TypeError, ValueError):  # arguments do not fit the message, which the stream's handler reports
            return
        with self._guard:
            self._kept.append(line)

    def take(self) -> TakenLines | None:
        """Returns at most as many lines as one fact holds; the next call returns the rest."""
        with self._guard:
            if not self._kept and not self._num_dropped:
                return None
            lines = tuple(self._kept.popleft() for _ in range(min(len(self._kept), MAX_LINES)))
            num_dropped, self._num_dropped = self._num_dropped, 0
        return TakenLines(component=self._component, lines=lines, num_dropped=num_dropped)

    def _may_keep(self) -> bool:
        now = self._clock()
        self._allowance = min(BURST, self._allowance + (now - self._allowed_at) * LINES_A_SECOND)
        self._allowed_at = now
        if self._allowance < 1.0 or len(self._kept) >= MOST_KEPT:
            return False
        self._allowance -= 1.0
        return True


class LineShippingSink:
    """A sink that records the keeper's lines before other facts, every few seconds and at the end."""

    def __init__(self, sink: EventSink, keeper: LineKeeper, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink, self._keeper, self._clock = sink, keeper, clock
        self._shipped_at = clock()

    def record(self, body: FactBody) -> None:
        is_last = isinstance(body, RunFinished)
        if is_last or self._clock() - self._shipped_at >= SHIP_EVERY_S:
            self._shipped_at = self._clock()
            while (taken := self._keeper.take()) is not None:
                self._sink.record(lines_fact(taken))
        self._sink.record(body)

    def close(self, timeout_s: float) -> bool:
        return self._sink.close(timeout_s)


def lines_fact(taken: TakenLines) -> LogLines:
    return LogLines(component=taken.component, lines=list(taken.lines), num_dropped=taken.num_dropped)


_WORDS: Final = logging.Formatter()  # formats the message and, after it, the traceback


def _to_line(record: logging.LogRecord) -> Line:
    level: LogLevel = "error"
    if record.levelno < logging.ERROR:
        level = "warning" if record.levelno >= logging.WARNING else "info"
        level = "debug" if record.levelno < logging.INFO else level
    text = _UNPRINTABLE.sub("\ufffd", for_tenants(_WORDS.format(record)))  # before the cut, which may split a path
    if len(text) > LONGEST_LINE:  # keeps the end too, where a traceback has its error
        half = LONGEST_LINE // 2 - 2
        text = f"{text[:half]} … {text[-half:]}"
    return Line(at=datetime.fromtimestamp(record.created, UTC), level=level, message=text)
