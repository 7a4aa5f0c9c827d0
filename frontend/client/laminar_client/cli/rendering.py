"""Formatting for the terminal: tables, times, plain text, JSON.

Invariants:
- text of users and models reaches the terminal only through `plain`, which passes no control characters, escape
  sequences or changes of writing direction;
- JSON output is the server's own document, as valid JSON that cannot change the terminal's state either.
"""

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

STYLE_OF_STATE: Mapping[str, str] = {
    "queued": "yellow",
    "validating": "yellow",
    "paused": "yellow",
    "starting": "cyan",
    "running": "cyan",
    "recovering": "magenta",
    "pausing": "cyan",
    "stopping": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
}
# Cc: controls and escapes. Cf: direction marks, zero-width characters. Zl, Zp, Cs: line breaks, half characters.
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_IN_EMOJI = "\u200d"
MANY = 1_000


def plain(text: object, *, lines: bool = False) -> str:
    """Replaces harmful characters by visible escapes. `lines`: keeps line ends and tabs."""
    return "".join(each if _is_harmless(each, lines=lines) else _visible(each) for each in str(text))


def _is_harmless(each: str, *, lines: bool) -> bool:
    if each in "\n\t":
        return lines
    return each == _IN_EMOJI or unicodedata.category(each) not in _HARMFUL


def _visible(each: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(each) or (
        f"\\x{ord(each):02x}" if ord(each) < 256 else f"\\u{ord(each):04x}"
    )


def json_text(document: object, *, indent: int | None = None) -> str:
    text = json.dumps(document, indent=indent, ensure_ascii=False, default=str)
    return "".join(each if each == "\n" or _is_harmless(each, lines=False) else _escaped(each) for each in text)


def _escaped(each: str) -> str:
    return json.dumps(each)[1:-1]


def state_text(state: str, reason: str = "") -> Text:
    shown = f"{state}: {reason}" if reason and state == "queued" else state
    return Text(plain(shown), style=STYLE_OF_STATE.get(state, ""))


def table(*columns: str, rows: Iterable[Sequence[object]], numbers: Iterable[str] = ()) -> Table:
    """`numbers`: the right-aligned columns."""
    right = set(numbers)
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        keep = name in {"id", "state"}
        made.add_column(name, justify="right" if name in right else "left", no_wrap=keep, overflow="fold")
    for row in rows:
        made.add_row(*(each if isinstance(each, Text) else Text(cell(each)) for each in row))
    return made


def cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return when(value)
    if isinstance(value, float):
        return number(value)
    return plain(value)


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= MANY else f"{value:.4g}"


def with_error(value: float, error: float) -> str:
    return f"{number(value)} ± {error:.2g}"


def when(moment: datetime | None) -> str:
    """In the user's time zone."""
    return "–" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(moment: datetime | None, *, now: datetime | None = None) -> str:
    return "–" if moment is None else f"{lasted(((now or datetime.now(UTC)) - moment).total_seconds())} ago"


def lasted(seconds: float) -> str:
    seconds = max(0, int(seconds))
    for unit, name, below in ((86_400, "d", 3_600), (3_600, "h", 60), (60, "min", 1)):
        if seconds >= unit:
            rest = seconds % unit // below
            small = {"d": "h", "h": "min", "min": "s"}[name]
            return f"{seconds // unit} {name} {rest} {small}" if rest else f"{seconds // unit} {name}"
    return f"{seconds} s"


def size(num_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < MANY:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= MANY
    return f"{num_bytes:.1f} TB"


def facts(pairs: Mapping[str, Any]) -> Table:
    """One name and value per line."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        made.add_row(Text(name), value if isinstance(value, Text) else Text(cell(value)))
    return made
