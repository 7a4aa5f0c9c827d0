"""The report of a benchmark: rows of numbers, the machine they are from, a table for people or one JSON object.

Invariants:
- a figure is a median of several, and its row has their smallest and largest value;
- figures to be compared are measured in the same run, in turns, so that a slow minute slows both.
"""

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Sample = TypeVar("Sample")
Value = str | int | float | None
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    bench: str
    rows: Sequence[Row]
    remarks: Sequence[str] = ()


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


def in_turns(contestants: Mapping[str, Callable[[], Sample]], *, repeats: int) -> dict[str, list[Sample]]:
    """Each once, then each once more, …"""
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, measure in contestants.items():
            samples[name].append(measure())
    return samples


def rounded(value: float) -> float:
    """Rounds to four digits, which is already more than a benchmark's precision."""
    return float(f"{value:.4g}")


def machine() -> dict[str, Value]:
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        **_accelerator(),
    }


def show(report: Report, machine: Mapping[str, Value], *, as_json: bool) -> None:
    if as_json:
        record = {"bench": report.bench, "machine": machine, "rows": list(report.rows), "remarks": list(report.remarks)}
        sys.stdout.write(json.dumps(record) + "\n")
        return
    lines = [*table(report.rows), "", ", ".join(f"{name} {value}" for name, value in machine.items()), *report.remarks]
    sys.stdout.write("\n".join(lines) + "\n")


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


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _accelerator() -> dict[str, Value]:
    import torch

    found: dict[str, Value] = {"torch": torch.__version__}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
    return found
