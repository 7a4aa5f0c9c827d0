"""The one format of log lines, for every process of ours: web, worker, beat, supervisor, driver, actors.

Invariants:
- a record is one line; what it names (a job, an address, an error of somebody's) is escaped in it, so nobody writes a
  line of their own into our logs, nor a command to the terminal that shows them;
- the lines of a traceback are indented, so none of them can be taken for a record.
"""

import logging
from typing import Any, Final, TextIO

from engine.spec.printable import escaped

LINE: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_INDENT: Final = "    "
_as_python_does: Final = logging.Formatter.format


class OneLine(logging.Formatter):
    def __init__(self, fmt: str = LINE, **others: Any) -> None:
        super().__init__(fmt, **others)

    def format(self, record: logging.LogRecord) -> str:
        mine = logging.makeLogRecord(record.__dict__)  # other handlers see the record as it was
        mine.msg, mine.args, mine.exc_text = escaped(record.getMessage()), (), None
        return _as_python_does(self, mine)

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def log_to(stream: TextIO | None = None, *, level: int = logging.INFO, fmt: str = LINE) -> None:
    """Everything that this process logs, if nothing is set up yet. Without a stream: to stderr."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine(fmt))
    logging.basicConfig(level=level, handlers=[handler])


def _indented(text: str) -> str:
    return "\n".join(_INDENT + escaped(line) for line in text.split("\n"))
