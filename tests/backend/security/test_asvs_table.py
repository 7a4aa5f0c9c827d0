"""SECURITY.md, as far as a test can check it: every point has a row, every row a reason, every test exists."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

from tests.backend.security.conftest import ROOT

DOCUMENT: Final = ROOT / "backend" / "SECURITY.md"
TESTS: Final = ROOT / "tests"

# ASVS 5.0.0, levels 1 and 2: of each section the points, 253 in all (70 of level 1, 183 of level 2).
POINTS: Final = {
    "1.1": "1-2", "1.2": "1-9", "1.3": "1-11", "1.4": "1-3", "1.5": "1-2",
    "2.1": "1-3", "2.2": "1-3", "2.3": "1-4", "2.4": "1",
    "3.2": "1-2", "3.3": "1-4", "3.4": "1-6", "3.5": "1-5", "3.7": "1-2",
    "4.1": "1-3", "4.2": "1", "4.3": "1-2", "4.4": "1-4",
    "5.1": "1", "5.2": "1-3", "5.3": "1-2", "5.4": "1-3",
    "6.1": "1-3", "6.2": "1-12", "6.3": "1-4", "6.4": "1-4", "6.5": "1-5", "6.6": "1-3", "6.8": "1-4",
    "7.1": "1-3", "7.2": "1-4", "7.3": "1-2", "7.4": "1-5", "7.5": "1-2", "7.6": "1-2",
    "8.1": "1-2", "8.2": "1-3", "8.3": "1", "8.4": "1",
    "9.1": "1-3", "9.2": "1-4",
    "10.1": "1-2", "10.2": "1-2", "10.3": "1-4", "10.4": "1-11", "10.5": "1-5", "10.6": "1-2", "10.7": "1-3",
    "11.1": "1-2", "11.2": "1-3", "11.3": "1-3", "11.4": "1-4", "11.5": "1", "11.6": "1",
    "12.1": "1-3", "12.2": "1-2", "12.3": "1-4",
    "13.1": "1", "13.2": "1-5", "13.3": "1-2", "13.4": "1-5",
    "14.1": "1-2", "14.2": "1-4", "14.3": "1-3",
    "15.1": "1-3", "15.2": "1-3", "15.3": "1-7",
    "16.1": "1", "16.2": "1-5", "16.3": "1-4", "16.4": "1-3", "16.5": "1-3",
    "17.1": "1", "17.2": "1-4", "17.3": "1-2",
}  # fmt: skip
_ROW: Final = re.compile(r"^\| (\d+\.\d+\.\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
_TEST: Final = re.compile(r"`([\w/]+\.py)::(\w+)`")
_REASON: Final = re.compile(r"(?:^|[;,.] )(?:does not apply|open)\b[^:]*: \S|document: \[")
_LINK: Final = re.compile(r"\]\(([^)]+)\)")


def rows() -> list[tuple[str, str, str]]:
    return _ROW.findall(DOCUMENT.read_text())


def wanted() -> list[str]:
    points = []
    for section, span in POINTS.items():
        first, _, last = span.partition("-")
        points += [f"{section}.{number}" for number in range(int(first), int(last or first) + 1)]
    return points


@cache
def names_in(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions))


def test_every_point_has_one_row_and_there_is_no_other() -> None:
    assert len(wanted()) == 253
    counts = Counter(number for number, _, _ in rows())
    assert sorted(counts.elements()) == sorted(wanted())


def test_every_row_names_existing_tests_or_a_reason() -> None:
    faults = []
    for number, asks, held_by in rows():
        tests = _TEST.findall(held_by)
        faults += [f"{number}: no test {file}::{name}" for file, name in tests if name not in names_in(TESTS / file)]
        if held_by.count("::") != len(tests):
            faults.append(f"{number}: a test is named as `backend/api/test_x.py::test_y`")
        if not tests and not _REASON.search(held_by):
            faults.append(f"{number}: neither a test nor a document nor why it does not apply nor what is open")
        if len(asks.split()) > 12:
            faults.append(f"{number}: its requirement, in twelve words at most")
    assert not faults, "\n".join(faults)


def test_what_the_document_leads_to_is_there() -> None:
    text = DOCUMENT.read_text()
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    for link in _LINK.findall(text):
        if link.startswith("#"):
            assert link[1:] in headings, link
        elif not link.startswith("https://"):
            assert (DOCUMENT.parent / link).exists(), link


def test_modules_that_the_document_names_are_there() -> None:
    prose = DOCUMENT.read_text().split("## OWASP ASVS")[0]
    named = set(re.findall(r"`([\w/]+\.py)`", prose))
    assert named and not [word for word in named if not ((ROOT / word).exists() or (ROOT / "backend" / word).exists())]
