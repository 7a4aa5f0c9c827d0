"""CSV tables for spreadsheets.

Invariant: no user-written cell is a formula: text that a spreadsheet would run is prefixed with an apostrophe.
"""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

_RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[str | int | float]]) -> str:
    """CSV as RFC 4180 defines it."""
    out = StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: str | int | float) -> str | int | float:
    if isinstance(value, str) and value.lstrip(" ").startswith(_RUN_BY_SPREADSHEETS):
        return f"'{value}"
    return value
