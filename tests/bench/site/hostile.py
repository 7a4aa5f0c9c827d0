"""Hostile input: a grammar of what programs send by mistake and people on purpose, for the fuzzers of API and pages.

It knows what once went through: NUL in all its spellings, times at both ends of the calendar, numbers beyond the
database's, cursors that hold any of these, names that cannot be seen. Halves of characters, which only raw JSON can
spell, are in `schema_calls.HOSTILE_BODIES`.
"""

import base64
import json
import random
from collections.abc import Mapping
from typing import Any, Final

TIMES: Final = (
    "0001-01-01", "9999-12-31", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
    "9999-12-31T23:59:59.999999Z", "1969-12-31T23:59:59Z", "2026-02-30", "2026-01-05T12:00:00+99:99", "-0001-01-01",
    "10000-01-01", "2026-01-05T24:00:00Z", "1e20", "253402300800", "-62135596801", "2026-W01-1", "20260105",
)  # fmt: skip
NUMBERS: Final = (
    "-1", "0", "1e999", "NaN", "Infinity", "-0", "1.5", "٣", "0x10", "1_000", str(2**31), str(2**63 - 1), str(2**63),
    str(2**64), "9" * 400, "9" * 5_000, "+1", " 1", "1\n",
)  # fmt: skip
NAMES: Final = (
    "\x00", "a\x00b", "\x1b[2J", "\r\nSet-Cookie: a=b", "\u202egnp.exe", "\u2066\u2069", "\u200b", "\u3164", "\ufeff",
    "\x7f", "\x85", "\u2028", "😀" * 300, "x" * 5_000, "../../etc/passwd", "..", ".", "/", "//", "%", "%00",
    "%2e%2e%2f", "' OR 1=1 --", "{{7*7}}", "{% debug %}", "<script>", "${x}", "None", "null", "undefined", "[]", "{}",
    " ", "", "é", "e\u0301", "İ", "ß", "\U000e0041", "\uffff",
)  # fmt: skip


def _cursor(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


CURSORS: Final = (
    *(_cursor(time, "job_" + "0" * 20) for time in TIMES),
    *(_cursor("2026-01-05T12:00:00+00:00", name) for name in NAMES[:12]),
    _cursor(1, 2), _cursor([], {}), _cursor("2026-01-05T12:00:00+00:00"), "W1tb" * 60, "bnVsbA", "812.9999", "9" * 18,
    f"{'9' * 18}.{'9' * 18}", "traj_999999999_999999999999999999_1_1",
)  # fmt: skip
WORDS: Final = (*TIMES, *NUMBERS, *NAMES, *CURSORS)


def word(rng: random.Random) -> str:
    return rng.choice(rng.choice((TIMES, NUMBERS, NAMES, CURSORS)))


def value(rng: random.Random) -> Any:
    """As JSON has them."""
    return rng.choice(
        (word(rng), word(rng), word(rng), 2**31, 2**63, -(2**63) - 1, 10**30, 1e308, -1, None, True, [], {}, [[]])
    )


def poisoned(document: Any, rng: random.Random) -> Any:
    """The same with one hostile value somewhere in it."""
    if isinstance(document, Mapping) and document and rng.random() < 0.9:
        name = rng.choice(list(document))
        if rng.random() < 0.05:
            return {**document, rng.choice(NAMES[:12]): 1}
        return {**document, name: poisoned(document[name], rng)}
    if isinstance(document, list) and document and rng.random() < 0.9:
        at = rng.randrange(len(document))
        return [*document[:at], poisoned(document[at], rng), *document[at + 1 :]]
    return value(rng)
