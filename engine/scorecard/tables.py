"""Rows of figures, and their table for people.

Invariant: a figure is a median of several, and its row has their smallest and largest value.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Value = str | int | float | None
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    median: float
    lowest: float
    highest: float
    num: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        return cls(median=statistics.median(samples), lowest=min(samples), highest=max(samples), num=len(samples))

    def columns(self, name: str) -> dict[str, Value]:
        return {
            name: rounded(self.median),
            f"{name}_min": rounded(self.lowest),
            f"{name}_max": rounded(self.highest),
            "runs": self.num,
        }


def rounded(value: float) -> float:
    """Rounds to four digits, which is already more than a benchmark's precision."""
    return float(f"{value:.4g}")


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Markdown, so that it can be pasted into a document."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(names)]
    for line in (names, ["-" * width for width in widths], *cells):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"


def _cell(value: Value) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case _:
            return value
