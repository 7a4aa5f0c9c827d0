"""`manage.py doctor`: a line for every check, exit code 1 if something is wrong, and a document that lists every
fault."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError

from backend.environment import Environment
from backend.operating.checks import disks, doctor, site
from backend.operating.checks.findings import Finding, Verdict, good

ROOT = Path(__file__).resolve().parents[3]
Checks = dict[str, Any]


def _well(_: Environment) -> Iterator[Finding]:
    yield good("it is well")


def _ill(_: Environment) -> Iterator[Finding]:
    yield good("so far")
    yield site.NOBODY.found("this site has no operator")


def _warned(_: Environment) -> Iterator[Finding]:
    yield disks.LOW.found("1 GB left")


def _broken(_: Environment) -> Iterator[Finding]:
    yield good("the beginning")
    raise ZeroDivisionError("at the end")


def _without_database(_: Environment) -> Iterator[Finding]:
    yield good("so far")
    raise DatabaseError("host=db password=hunter2")


def _said(monkeypatch: pytest.MonkeyPatch, checks: Checks, *flags: str) -> tuple[str, str]:
    """Its output, and its error."""
    monkeypatch.setattr("backend.operating.management.commands.doctor.NEAR", checks)
    out = io.StringIO()
    try:
        call_command("doctor", "--no-nodes", *flags, stdout=out)
    except CommandError as error:
        return out.getvalue(), str(error)
    return out.getvalue(), ""


def test_site_without_faults_or_with_warnings_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    output, failure = _said(monkeypatch, {"This": _well, "That": _warned})
    assert failure == "" and "Nothing is wrong; 1 warnings." in output
    assert "  ok       it is well" in output and "  warning  1 GB left  [disk.low]" in output


def test_faults_are_printed_with_cures_and_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    output, failure = _said(monkeypatch, {"This": _ill, "That": _well})
    assert "  WRONG    this site has no operator  [site.nobody]" in output
    assert "→ Run `python manage.py bootstrap`" in output
    assert failure == "1 of 3 are wrong"


def test_json_has_the_same_findings_and_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    output, failure = _said(monkeypatch, {"This": _ill}, "--json")
    document = json.loads(output)
    assert document["wrong"] == 1 and failure
    assert document["findings"][1] == {
        "part": "This", "observation": "this site has no operator", "verdict": "wrong", "fault": "site.nobody",
        "cure": site.NOBODY.cure,
    }  # fmt: skip


def test_a_check_that_breaks_hides_no_other() -> None:
    checks: Checks = {"One": _broken, "Two": _without_database, "Three": _well}
    parts = list(doctor.examine(None, checks))  # type: ignore[arg-type]
    assert [part.verdict for part in parts] == [Verdict.WRONG, Verdict.WRONG, Verdict.GOOD]
    assert [finding.observation for finding in parts[0].findings] == ["the beginning", "ZeroDivisionError: at the end"]
    assert "hunter2" not in str(parts[1]) and parts[1].findings[-1].fault == "doctor.broken"


def test_each_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in doctor.known_faults()]
    assert len(names) == len(set(names)) > 40
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in names)


def test_the_document_has_every_fault_with_its_cure_and_no_other() -> None:
    """In the order of the checks."""
    document = (ROOT / "infra/OPERATING.md").read_text()
    section = document.partition("## What `doctor` says, and what to do\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if re.match(r"\| `[a-z]+\.", line)]
    assert rows == [doctor.row_of(fault) for fault in doctor.known_faults()]


def test_each_fault_is_seen_by_a_test() -> None:
    here = Path(__file__).parent
    texts = "".join(path.read_text() for path in here.rglob("test_*.py"))
    assert [fault.name for fault in doctor.known_faults() if f'"{fault.name}"' not in texts] == []
