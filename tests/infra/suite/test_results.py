"""What a run recorded: outcomes, the test in progress, rooms, slow tests."""

from pathlib import Path

import pytest

from engine.environments.sandbox.host_speed import HIGHEST, REFERENCE_ROUNDS_PER_S, scale_of
from infra.suite.report import common_errors, red_files
from infra.suite.results import (
    CRASHED,
    Result,
    failures,
    read_results,
    running_tests,
    skips,
    slow_tests,
    time_table,
    write_phase,
)
from infra.suite.speed import measure_scale


def phase(file: Path, nodeid: str, when: str, outcome: str = "passed", **more: object) -> None:
    write_phase(file, nodeid=nodeid, when=when, outcome=outcome, seconds=0.5, **more)


def result(nodeid: str, *, seconds: float = 1.0, outcome: str = "passed", marks: tuple[str, ...] = ()) -> Result:
    return Result(nodeid=nodeid, outcome=outcome, seconds=seconds, marks=marks)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


def test_worst_phase_decides_and_seconds_add_up(record: Path) -> None:
    for when in ("setup", "call"):
        phase(record, "a", when)
    phase(record, "a", "teardown", "failed", reason="left a thread")
    (only,) = read_results(record)
    assert (only.outcome, only.seconds, only.reason) == ("failed", 1.5, "left a thread")
    assert failures([only]) == [only]


def test_unfinished_tests_are_in_progress(record: Path) -> None:
    for nodeid in ("ended", "crashed", "hangs"):
        phase(record, nodeid, "start", "started")
    phase(record, "ended", "teardown")
    phase(record, "crashed", CRASHED, "failed")
    phase(record, "hangs", "setup")
    assert running_tests(record) == ["hangs"]
    assert {row.nodeid for row in failures(read_results(record))} == {"crashed", "hangs"}


def test_no_record_is_no_result(record: Path) -> None:
    assert read_results(record) == [] and running_tests(record) == []


def test_only_unmarked_passed_tests_are_slow() -> None:
    tests = [
        result("slow", seconds=5),
        result("quick"),
        result("marked", seconds=50, marks=("proof",)),
        result("red", seconds=50, outcome="failed"),
    ]
    assert [row.nodeid for row in slow_tests(tests, scale=1)] == ["slow"]
    assert slow_tests(tests, scale=3) == []


def test_skips_are_counted_by_reason() -> None:
    rows = [Result(nodeid=name, outcome="skipped", seconds=0, reason="no GPU") for name in "ab"]
    assert skips([*rows, result("c")]) == {"no GPU": 2}


@pytest.mark.parametrize(
    ("nodeid", "room"),
    [
        ("tests/engine/live/run/test_job.py::test_a[1]", "engine/live"),
        ("tests/e2e/test_way_of_one_job.py::test_a", "e2e"),
        ("tests/test_architecture.py::TestA::test_b", "tests"),
    ],
)
def test_room_is_the_folder_at_most_two_deep(nodeid: str, room: str) -> None:
    assert result(nodeid).room == room


def test_time_table_adds_up_rooms_longest_first() -> None:
    tests = [result("tests/e2e/test_a.py::a"), result("tests/infra/test_a.py::a", seconds=2.6)]
    assert time_table(tests).splitlines()[2:] == ["| `infra` | 1 | 3 | 0 |", "| `e2e` | 1 | 1 | 0 |"]


def test_many_red_tests_are_counted_by_file() -> None:
    assert red_files(["a::b", "a::c", "d::e", "a sentence"]) == []
    many = [f"tests/a.py::{n}" for n in range(3)] + [f"tests/{n}.py::a" for n in range(20)]
    lines = red_files(many)
    assert lines[0] == "red 3: tests/a.py" and lines[-1] == "and 6 files more" and len(lines) < 20


def test_scale_is_how_much_slower_within_bounds() -> None:
    assert scale_of(REFERENCE_ROUNDS_PER_S / 2.5) == 2.5
    assert scale_of(REFERENCE_ROUNDS_PER_S * 9) == 1
    assert scale_of(1) == HIGHEST
    assert 1 <= measure_scale(1) <= HIGHEST


def test_error_of_many_red_files_is_named_once() -> None:
    reasons = {f"test_{n}.py": f"line 3: in <module>\nE   ModuleNotFoundError: no{n == 7}" for n in range(9)}
    errors = common_errors([*reasons, "a sentence"], reasons)
    assert errors == ["red 8 times: ModuleNotFoundError: noFalse", "red 1 times: ModuleNotFoundError: noTrue"]
    assert common_errors([*reasons][:4], reasons) == []
