"""The two formats of log lines of all our processes: web, worker, beat, supervisor, driver, actors.

    text (the default)   2026-01-05 12:00:00,000 INFO backend.jobs launched job=job_1 attempt=2
    json                 {"time": "2026-01-05T12:00:00.000Z", "level": "INFO", …, "job": "job_1", "attempt": 2}

Invariants:
- a record is one line; values in it (a job, an address, a foreign error) are escaped, so that no value can forge a log
  line or send a command to the terminal that shows it, even after JSON is decoded;
- the lines of a traceback are indented, so that none of them can pass for a record;
- recognisable secrets are removed, and of a record's extras only those in `KNOWN` are written;
- job, attempt and request come from our own code (`about`, or the format string of a message), never from the values
  of a message, which a stranger may have chosen.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from engine.spec.logs.log_subject import KNOWN, current_subject
from engine.spec.printable import escaped

LINE: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_INDENT: Final = "    "
_as_python_does: Final = logging.Formatter.format
_SECRET: Final = re.compile(
    r"(lam_(?:live|run)_)[\w-]+"  # our keys and tokens,
    r"|((?i:bearer)\s+)[^\s\"',;]+"  # bearer tokens,
    r"|(\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s/@]+(?=@)",  # and passwords in URLs
    re.ASCII,
)
_FILLED_IN: Final = re.compile(r"(?:(\w+)=)?%[-#0 +]*[\d.]*([a-zA-Z%])", re.ASCII)


class OneLine(logging.Formatter):
    def __init__(self, fmt: str = LINE, **others: Any) -> None:
        super().__init__(fmt, **others)

    def format(self, record: logging.LogRecord) -> str:
        copy = logging.makeLogRecord(record.__dict__)  # other handlers get the unchanged record
        copy.msg, copy.args, copy.exc_text = _message_of(record), (), None
        return _as_python_does(self, copy)

    def formatException(self, ei: Any) -> str:
        return _indent(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indent(super().formatStack(stack_info))


class JsonLine(OneLine):
    """ASCII only, so that the line is the same in every stream's encoding."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {
            "time": at,
            "level": record.levelname,
            "logger": escaped(record.name),
            "message": _message_of(record),
        }
        known = _subject_of(record)
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
    """Logs everything of this process to `stream` (None: stderr), unless logging is configured already."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form(fmt))
    logging.basicConfig(level=level, handlers=[handler])


def _plain(value: object) -> str | int:
    return value if isinstance(value, int) else escaped(str(value))


def _message_of(record: logging.LogRecord) -> str:
    return escaped(without_secrets(record.getMessage()))


def without_secrets(text: str) -> str:
    return _SECRET.sub(lambda match: f"{match[1] or match[2] or match[3]}…", text)


def _subject_of(record: logging.LogRecord) -> dict[str, Any]:
    around, named = dict(current_subject()), dict(_read_subject(record))
    if "job" in named and named["job"] != around.get("job"):
        around.pop("attempt", None)  # the attempt belongs to the other job
    return {**around, **named}


def _read_subject(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """For each `job=%s` in the message's format string, the key and its value."""
    if not isinstance(record.msg, str) or not isinstance(record.args, tuple):
        return
    places = [match for match in _FILLED_IN.finditer(record.msg) if match[2] != "%"]
    for place, value in zip(places, record.args, strict=False):
        if place[1] in KNOWN:
            yield place[1], value


def _indent(text: str) -> str:
    return "\n".join(_INDENT + escaped(line) for line in without_secrets(text).split("\n"))
