"""How long each part of the tests took is printed, and CONTRIBUTING.md keeps a row of every room."""

import re
from pathlib import Path

import pytest

from infra.local.parts import parts
from infra.local.test_times import room_of, table_of

ROOT = Path(__file__).resolve().parents[2]
REPORT = """<?xml version="1.0"?><testsuites><testsuite name="pytest">
<testcase classname="tests.engine.live.run.test_job" name="a" time="2.5"/>
<testcase classname="tests.engine.live.test_light.TestOne" name="b" time="1.0"/>
<testcase classname="tests.e2e.test_way" name="c" time="10.4"/>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("module", "room"),
    [
        ("tests.engine.live.run.test_job", "engine/live"),
        ("tests.engine.live.run.test_job.TestKilled", "engine/live"),
        ("tests.e2e.test_way_of_one_job", "e2e"),
        ("tests.test_architecture", "tests"),
    ],
)
def test_a_test_belongs_to_the_room_whose_folder_it_lies_in(module: str, room: str) -> None:
    assert room_of(module) == room


def test_the_table_adds_up_every_part_and_every_room_and_does_without_a_part_that_broke_off(tmp_path: Path) -> None:
    (tmp_path / "first.xml").write_text(REPORT)
    table = table_of({"first": tmp_path / "first.xml", "broken off": tmp_path / "absent.xml"}, whole_s=90)
    assert table.splitlines() == [
        "",
        "| part, room | tests | seconds |",
        "|---|---|---|",
        "| *first* | 3 | 14 |",
        "| *broken off* | 0 | 0 |",
        "| `e2e` | 1 | 10 |",
        "| `engine/live` | 2 | 4 |",
        "",
        "The whole: 1.5 minutes.",
    ]


def test_contributing_has_a_row_for_every_part_and_every_room() -> None:
    rows = re.compile(r"^\| (?:`|\*)([^`*]+)(?:`|\*) \| \d+ \| \d+ \|$", re.M)
    kept = set(rows.findall((ROOT / "CONTRIBUTING.md").read_text()))
    tests = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "tests").rglob("test_*.py")]
    rooms = {room_of(".".join(path.parts)) for path in tests}
    assert kept == rooms | set(parts())
