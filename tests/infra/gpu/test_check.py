"""The GPU check on a CPU: every step runs with few packages, and what fails, hangs or finds no time is a line."""

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from infra.gpu import check
from infra.gpu.check import STEPS, Step, main, run_step, run_steps
from tests.waiting import eventually

SCRIPT = Path(check.__file__).with_name("check.sh")
GIVEN = ("torch", "transformers", "safetensors", "tokenizers", "numpy", "jinja2", "xxhash", "httpx", "pyarrow")
WHEELS = ("pydantic", "pydantic-core", "typing-inspection", "annotated-types", "typing-extensions")
QUICK = Step(name="attention", limit_s=1_000, words=("agreement", "--parts", "attention"))


def needed(names: Sequence[str]) -> dict[str, Distribution]:
    """These packages and theirs, without extras."""
    packages: dict[str, Distribution] = {}
    left = list(names)
    while left:
        name = left.pop()
        try:
            package = distribution(name)
        except PackageNotFoundError:  # of another platform
            continue
        if package.name not in packages:
            packages[package.name] = package
            requirements = [Requirement(words) for words in package.requires or []]
            left += [each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": ""})]
    return packages


def interpreter_with(names: Sequence[str], folder: Path) -> Path:
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in needed(names).values():
        tops = {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(str(package.locate_file(top)))
    return folder / "bin" / "python"


def check_with(python: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(python), "OMP_NUM_THREADS": "1"}
    command = [str(SCRIPT), "--out", str(out), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.long
def test_rehearsal_passes_with_the_named_packages_only(tmp_path: Path) -> None:
    python = interpreter_with([*GIVEN, *WHEELS], tmp_path / "venv")
    assert subprocess.run([python, "-c", "import ray"], capture_output=True).returncode != 0
    out = tmp_path / "out"
    ended = check_with(python, out, "--rehearse", "--seconds", "2000")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [step.name for step in STEPS]
    assert all(line["ok"] and line["rows"] for line in lines)
    written = (out / "measured.md").read_text()
    assert all(f"## {step.name}: ok" in written for step in STEPS) and "| figure" in written
    assert max(file.stat().st_size for file in out.iterdir()) <= check.LARGEST_FILE


def test_missing_package_is_named_with_the_command_that_helps(tmp_path: Path) -> None:
    python = interpreter_with(["numpy"], tmp_path / "venv")
    ended = check_with(python, tmp_path / "out")
    assert ended.returncode == 2
    assert "has no torch" in ended.stderr and "infra/gpu/wheels.sh FOLDER" in ended.stderr


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_step_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = f"import os, time; open({str(child)!r}, 'w').write(str(os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '3600')));"
    log = tmp_path / "step.log"

    def child_pid() -> str:  # a busy host may not have started the child at the limit
        assert check._run([sys.executable, "-c", f"{code} time.sleep(3600)"], log, limit_s=1.0) is None
        return child.read_text() if child.exists() else ""

    eventually(child_pid, "the step starts its child")
    eventually(lambda: not is_alive(int(child.read_text())), "the child has ended")


def test_hanging_step_is_a_line_and_the_next_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_run", lambda command, log, limit_s: log.write_text("it hung\n") and None)
    (line,) = run_steps([QUICK], tmp_path, device="cpu", until=time.monotonic() + 60)
    assert line["ok"] is False and line["why"].startswith("ended after ") and line["log"] == "it hung\n"


def test_step_that_fails_brings_the_end_of_its_log(tmp_path: Path) -> None:
    wrong = Step(name="wrong", limit_s=1_000, words=("no-such-bench",))
    line = run_step(wrong, tmp_path, device="cpu", limit_s=1_000)
    assert line["why"] == "ended with 2 and no result" and "invalid choice" in line["log"]


def test_without_time_a_step_is_not_begun(tmp_path: Path) -> None:
    (line,) = run_steps([QUICK], tmp_path, device="cpu", until=time.monotonic())
    assert line == {"step": "attention", "ok": False, "seconds": 0.0, "why": "not begun, for want of time"}


def told(rows: list[dict[str, Any]], remarks: Sequence[str] = ()) -> str:
    report = {"bench": "agreement", "machine": {"gpu": "H200"}, "rows": rows, "remarks": list(remarks)}
    return f"a library's noise\n{json.dumps(report)}\nmore noise\n"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"figure": "a", "ok": 1}, {"figure": "b", "ok": 0}], "beyond their bounds: b"),
        ([], "No GPU here"),
        ([{"figure": "a", "ok": 1}, {"figure": "speed", "median": 1.0}], ""),
    ],
)
def test_verdict_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], why: str
) -> None:
    monkeypatch.setattr(check, "_run", lambda command, log, limit_s: 0 * log.write_text(told(rows, ["No GPU here"])))
    code = main(["--out", str(tmp_path), "--only", "attention"])
    (line,) = map(json.loads, (tmp_path / "steps.jsonl").read_text().splitlines())
    assert (code, line["ok"], line["why"]) == (int(bool(why)), not why, why)
    assert "gpu H200" in (tmp_path / "measured.md").read_text()


def test_large_logs_are_cut_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LARGEST_FILE", 2_000)
    log = tmp_path / "step.log"
    assert check._run([sys.executable, "-c", "print('x' * 5_000, 'end')"], log, limit_s=1_000) == 0
    assert log.stat().st_size == 1_000 and log.read_text().endswith("end\n")
