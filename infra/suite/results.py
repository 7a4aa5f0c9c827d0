"""The recorded results of a run: one line a test, written by the plugin, read by the runner.

A `Result` adds up setup, call and teardown of one test. Its outcome is the worst of the three.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SLOW_AFTER_S: Final = 2.0
"""A test of the gate that takes longer alone is reported."""
TOO_SLOW_CPU_S: Final = 4.0
"""One that uses the processor for longer alone is red."""
NUM_SLOWEST: Final = 10
CRASHED: Final = "???"
"""xdist's word for when a test failed whose worker died."""
ENDS: Final = ("teardown", CRASHED)
_ROOM_DEPTH: Final = 2
_WORST_FIRST: Final = ("failed", "skipped", "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    nodeid: str
    outcome: str
    seconds: float
    cpu_s: float = 0.0
    marks: tuple[str, ...] = ()
    reason: str = ""
    """Of a failure: the end of its traceback. Of a skip: what was missing."""
    load: float = 0.0
    """The load average when the test ended."""

    @property
    def room(self) -> str:
        """The test's folder below `tests/`, at most two deep: `engine/live`, `backend/jobs`, `e2e`."""
        folders = self.nodeid.split("::", 1)[0].split("/")[1:-1]
        return "/".join(folders[:_ROOM_DEPTH]) or "tests"


def write_phase(file: Path, **phase: Any) -> None:
    """Appends setup, call or teardown of a test as one line: what was recorded survives a killed run."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(phase) + "\n")


def read_results(file: Path) -> list[Result]:
    """In the order in which the tests began. A test of which something passed and whose end is missing has failed."""
    phases: dict[str, list[Mapping[str, Any]]] = {}
    for phase in _phases(file):
        if phase["outcome"] != "started":
            phases.setdefault(phase["nodeid"], []).append(phase)
    return [_result_of(nodeid, rows) for nodeid, rows in phases.items()]


def running_tests(file: Path) -> list[str]:
    """Tests that began and did not end, which is what a run that hangs waits for."""
    started: dict[str, None] = {}
    for phase in _phases(file):
        if phase["outcome"] == "started":
            started[phase["nodeid"]] = None
        elif phase["when"] in ENDS:
            started.pop(phase["nodeid"], None)
    return list(started)


def _phases(file: Path) -> Iterable[Mapping[str, Any]]:
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _result_of(nodeid: str, phases: Sequence[Mapping[str, Any]]) -> Result:
    if phases[-1]["when"] not in ENDS:
        phases = [*phases, {"outcome": "failed", "seconds": 0.0, "reason": "its process ended in the middle of it"}]
    worst = min(phases, key=lambda phase: _WORST_FIRST.index(phase["outcome"]))
    return Result(
        nodeid=nodeid,
        outcome=worst["outcome"],
        seconds=sum(phase["seconds"] for phase in phases),
        cpu_s=sum(phase.get("cpu_s", 0.0) for phase in phases),
        marks=tuple(worst.get("marks", ())),
        reason=worst.get("reason", ""),
        load=worst.get("load", 0.0),
    )


def failures(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if result.outcome == "failed"]


def slow_tests(results: Iterable[Result], *, scale: float) -> list[Result]:
    """Unmarked tests that took longer than the gate allows, in parallel with others: each is timed again alone."""
    exempt = {"long", "proof", "soak"}
    return [
        result
        for result in results
        if result.outcome == "passed" and result.seconds > SLOW_AFTER_S * scale and not exempt & set(result.marks)
    ]


def skips(results: Iterable[Result]) -> Counter[str]:
    """How many tests were skipped for each reason."""
    return Counter(result.reason for result in results if result.outcome == "skipped")


def time_table(results: Sequence[Result]) -> str:
    """In the form in which CONTRIBUTING.md keeps it: the workers run side by side, so rooms add up to more than the
    whole run took."""
    rooms: dict[str, list[Result]] = {}
    for result in results:
        rooms.setdefault(result.room, []).append(result)
    longest_first = sorted(rooms.items(), key=lambda row: -sum(result.seconds for result in row[1]))
    rows = [
        f"| `{room}` | {len(tests)} | {sum(t.seconds for t in tests):.0f} | {sum(t.cpu_s for t in tests):.0f} |"
        for room, tests in longest_first
    ]
    return "\n".join(["| room | tests | seconds | CPU-seconds |", "|---|---|---|---|", *rows])


def slowest(results: Iterable[Result]) -> list[Result]:
    return sorted(results, key=lambda result: -result.seconds)[:NUM_SLOWEST]
