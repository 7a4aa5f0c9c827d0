"""The time that the tests took, by part and by room, from the reports that pytest writes (`--junitxml`).

A room is a folder of `tests/`, two deep at most: `engine/live`, `backend/jobs`, `e2e`. The parts run side by side, so
the seconds of the rooms add up to more than the whole took.
"""

import xml.etree.ElementTree as Xml
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DEEPEST: Final = 2


@dataclass(slots=True, kw_only=True)
class Share:
    num_tests: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.num_tests += 1
        self.seconds += seconds


def table_of(reports: Mapping[str, Path], *, whole_s: float) -> str:
    """In the form in which CONTRIBUTING.md keeps it. A part that wrote no report was broken off, and is left out."""
    by_part: dict[str, Share] = {part: Share() for part in reports}
    by_room: dict[str, Share] = {}
    for part, report in reports.items():
        for module, seconds in _tests_of(report):
            by_part[part].add(seconds)
            by_room.setdefault(room_of(module), Share()).add(seconds)
    rows = [f"| *{part}* | {share.num_tests} | {share.seconds:.0f} |" for part, share in by_part.items()]
    longest_first = sorted(by_room.items(), key=lambda room: -room[1].seconds)
    rows += [f"| `{room}` | {share.num_tests} | {share.seconds:.0f} |" for room, share in longest_first]
    head = ["| part, room | tests | seconds |", "|---|---|---|"]
    return "\n".join(["", *head, *rows, "", f"The whole: {whole_s / 60:.1f} minutes."])


def room_of(module: str) -> str:
    """Of a test's module, as pytest names it: `tests.engine.live.run.test_job` or `tests.e2e.test_way.TestClass`."""
    folders: list[str] = []
    for name in module.split(".")[1:]:
        if name.startswith("test_") or len(folders) == _DEEPEST:
            break
        folders.append(name)
    return "/".join(folders) or "tests"


def _tests_of(report: Path) -> list[tuple[str, float]]:
    if not report.is_file():
        return []
    cases = Xml.parse(report).getroot().iter("testcase")
    return [(case.get("classname", ""), float(case.get("time", "0"))) for case in cases]
