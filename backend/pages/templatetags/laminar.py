"""Formats of numbers, times and words. The same rules as in js/lib/format.js."""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django import template

from backend.pages import undoing, words

register = template.Library()
register.filter(undoing.undo_of)

MINUS, NOTHING = "−", "–"


@register.filter
def number(value: object) -> str:
    """Three significant digits: 0.0312, 0.76, 12.4, 843, 12,345."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-3 or size >= 1e7:
        text = f"{size:.2e}"
    elif size == int(size) or size >= 100:
        text = f"{size:,.0f}"
    else:
        text = f"{size:.{1 if size >= 10 else 2 if size >= 0.1 else 4}f}"
    return (MINUS if value < 0 else "") + text


@register.filter
def hours(value: object) -> str:
    """For a column of sums: two decimals; smaller non-zero values are not shown as 0."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING
    if 0 < value < 0.005:
        return "<0.01"
    return "0" if value == 0 else f"{value:,.2f}" if value < 1_000 else f"{value:,.0f}"


@register.filter
def reward(value: object) -> str:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING
    return f"{value:.2f}".replace("-", MINUS) if abs(value) < 100 else number(value)


@register.filter
def change(value: object) -> str:
    if not isinstance(value, int | float):
        return ""
    return f"{'+' if value >= 0 else MINUS}{reward(abs(value))}"


@register.filter
def span(value: timedelta | float | None) -> str:
    """48 s, 3 min 05 s, 2 h 10 min, 3 d 4 h."""
    if value is None:
        return NOTHING
    seconds = max(0, round(value.total_seconds() if isinstance(value, timedelta) else value))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60:02} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3_600} h"


@register.filter
def ago(at: datetime | None, now: datetime) -> str:
    if at is None:
        return NOTHING
    seconds = (now - at).total_seconds()
    if seconds < 5:
        return "just now"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


@register.filter
def iso(at: datetime | None) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds") if at else ""


@register.filter
def clock(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}" if at else ""


@register.filter
def day(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at else ""


@register.filter
def phase(word: str) -> str:
    return words.plain(word, words.PHASES)


@register.filter
def reason(word: str) -> str:
    return words.plain(word, words.REASONS)


@register.filter
def event(word: str) -> str:
    return words.plain(word, words.EVENTS).capitalize()


@register.filter
def meaning(state: str) -> str:
    return words.STATE_MEANING.get(state, "")


@register.filter
def item(mapping: dict[str, Any], key: str) -> Any:  # a template's look-up
    return mapping.get(key)


@register.filter
def split(comma_separated: str) -> list[str]:
    return comma_separated.split()


@register.filter
def any_in(keys: Iterable[str], mapping: Mapping[str, object]) -> bool:
    return any(key in mapping for key in keys)


@register.filter
def ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


@register.filter
def share(value: float) -> str:
    return f"{number(100 * value)} %"


@register.filter
def size(num_bytes: object) -> str:
    if not isinstance(num_bytes, int | float):
        return "size unknown"
    left = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if left < 1_000:
            return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1_000
    return f"{left:.1f} TB"


@register.filter
def percent(value: float) -> str:
    """For an SVG attribute: never a comma."""
    return f"{value:.3f}%"
