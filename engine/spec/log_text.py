"""The two forms of log lines, for every process of ours: web, worker, beat, supervisor, driver, actors.

    text (the default)   2026-01-05 12:00:00,000 INFO backend.jobs launched job=job_1 attempt=2
    json                 {"time": "2026-01-05T12:00:00.000Z", "level": "INFO", …, "job": "job_1", "attempt": 2}

Invariants:
- a record is one line; what it names (a job, an address, an error of somebody's) is escaped in it, so nobody writes a
  line of their own into our logs, nor a command to the terminal that shows them, also once JSON is decoded;
- the lines of a traceback are indented, so none of them can be taken for a record;
- what can be recognised as a secret is left out. Of a record's extras nothing is told but what `KNOWN` names;
- job, attempt and request are read from where we write them (`about`, the words of a message before they are filled
  in), never from what was filled in, which a stranger may have worded.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from engine.spec.log_subject import KNOWN, told_of
from engine.spec.printable import escaped

LINE: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_INDENT: Final = "    "
_as_python_does: Final = logging.Formatter.format
_SECRET: Final = re.compile(
    r"(lam_(?:live|run)_)[\w-]+"  # keys and tokens of ours,
    r"|((?i:bearer)\s+)[^\s\"',;]+"  # whatever somebody signs a call with,
    r"|(\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s/@]+(?=@)",  # and passwords in addresses
    re.ASCII,
)
_FILLED_IN: Final = re.compile(r"(?:(\w+)=)?%[-#0 +]*[\d.]*([a-zA-Z%])", re.ASCII)


class OneLine(logging.Formatter):
    def __init__(self, fmt: str = LINE, **others: Any) -> None:
        super().__init__(fmt, **others)

    def format(self, record: logging.LogRecord) -> str:
        mine = logging.makeLogRecord(record.__dict__)  # other handlers see the record as it was
        mine.msg, mine.args, mine.exc_text = _said(record), (), None
        return _as_python_does(self, mine)

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


class JsonLine(OneLine):
    """All in ASCII, so that no stream has to encode anything its own way."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {
            "time": at,
            "level": record.levelname,
            "logger": escaped(record.name),
            "message": _said(record),
        }
        known = _about(record)
        known.update((key, vars(record)[key]) for key in KNOWN if key in vars(record))
        line |= {key: _plain(known[key]) for key in KNOWN if known.get(key)}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)


FORMS: Final[Mapping[str, type[OneLine]]] = {"text": OneLine, "json": JsonLine}


def form_of(name: str) -> type[OneLine]:
    """Raises `ValueError`."""
    if (name or "text") not in FORMS:
        raise ValueError(f"LAMINAR_LOG_FORMAT: {' or '.join(FORMS)}, got {name!r}")
    return FORMS[name or "text"]


def log_to(
    stream: TextIO | None = None, *, level: int = logging.INFO, fmt: str = LINE, form: type[OneLine] = OneLine
) -> None:
    """Everything that this process logs, if nothing is set up yet. Without a stream: to stderr."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form(fmt))
    logging.basicConfig(level=level, handlers=[handler])


def _plain(value: object) -> str | int:
    return value if isinstance(value, int) else escaped(str(value))


def _said(record: logging.LogRecord) -> str:
    return escaped(without_secrets(record.getMessage()))


def without_secrets(text: str) -> str:
    return _SECRET.sub(lambda found: f"{found[1] or found[2] or found[3]}…", text)


def _about(record: logging.LogRecord) -> dict[str, Any]:
    around, named = dict(told_of()), dict(_named(record))
    if "job" in named and named["job"] != around.get("job"):
        around.pop("attempt", None)  # it is not that one's
    return {**around, **named}


def _named(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """`job=%s` of the message's own words, with what is filled in there."""
    if not isinstance(record.msg, str) or not isinstance(record.args, tuple):
        return
    places = [found for found in _FILLED_IN.finditer(record.msg) if found[2] != "%"]
    for place, value in zip(places, record.args, strict=False):
        if place[1] in KNOWN:
            yield place[1], value


def _indented(text: str) -> str:
    return "\n".join(_INDENT + escaped(line) for line in without_secrets(text).split("\n"))
