"""Formats of numbers, times and words. The same rules as in js/lib/format.js."""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django import template

from backend.pages import words

register = template.Library()

MINUS, NOTHING = "−", "–"


@register.filter
def number(value: object) -> str:
    """Three digits that matter: 0.0312, 0.76, 12.4, 843, 12,345."""
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
    """In a column of sums: two places, and what is too little for them is not called nothing."""
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
def split(words_in_a_row: str) -> list[str]:
    return words_in_a_row.split()


@register.filter
def tone(sample: Any) -> str:  # a trajectory, or nothing in the page's template of one
    """By thirds of the usual span of a reward, 0 to 1. The browser widens the span when rewards leave it."""
    return "high" if sample.reward > 2 / 3 else "low" if sample.reward < 1 / 3 else "middle"


@register.filter
def any_in(keys: Iterable[str], mapping: Mapping[str, object]) -> bool:
    return any(key in mapping for key in keys)


@register.filter
def share(value: float) -> str:
    return f"{number(100 * value)} %"


@register.filter
def percent(value: float) -> str:
    """For an SVG attribute: never a comma."""
    return f"{value:.3f}%"
