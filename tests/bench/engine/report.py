"""The report of a benchmark: rows of numbers, the machine they are from, a table for people or one JSON object.

Invariant: figures to be compared are measured in the same run, in turns, so that a slow minute slows both.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.scorecard.tables import Row, Value, table

Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    bench: str
    rows: Sequence[Row]
    remarks: Sequence[str] = ()


def in_turns(contestants: Mapping[str, Callable[[], Sample]], *, repeats: int) -> dict[str, list[Sample]]:
    """Each once, then each once more, …"""
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, measure in contestants.items():
            samples[name].append(measure())
    return samples


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
