"""The vLLM rollout engine: runs its tests in vLLM's own environment, and tests the search for that environment.

Invariants:
- each test function and test class of `tests/vllm` is one test here, so the suite can retry it alone;
- all selected tests run in one process: starting vLLM takes longer than most of them.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.inference.vllm.interpreter import find_vllm_python
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests" / "vllm"
CASE_WITHIN_S = 900.0
"""Times SCALE. Between the ends of two cases, which may start engines."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""With matrices as small as in these tests, two threads mostly spin and wait for each other: three times the work."""


def _names() -> Iterator[str]:
    """Parsed, not imported: the modules import vLLM, which this environment lacks."""
    for file in sorted(FOLDER.glob("*_in_vllm.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.startswith(("test_", "Test")):
                yield f"{file.stem}::{node.name}"


class VllmTests:
    """The selected tests, running in vLLM's environment. The outcome of each is there as soon as it ends."""

    def __init__(self, process: subprocess.Popen[bytes], outcomes: Path, output: Path) -> None:
        self._process, self._outcomes, self._output = process, outcomes, output

    def wait_for(self, name: str) -> list[dict[str, str]]:
        """The outcome of each of its cases. Fails only when no case ends for very long."""
        while not (outcomes := self._outcomes_of(name)):
            self._wait_for_more(len(self._lines()), name)
        return outcomes

    def _wait_for_more(self, num: int, name: str) -> None:
        eventually(
            lambda: len(self._lines()) > num,
            f"another case ends before {name}",
            within_s=CASE_WITHIN_S,
            process=self._process,
            log=lambda: self._output.read_text()[-8_000:],
        )

    def _outcomes_of(self, name: str) -> list[dict[str, str]]:
        """Empty until all of its cases have ended."""
        lines = self._lines()
        cases = [case for case in (lines[0]["selected"] if lines else []) if _name_of(case) == name]
        ended = {line["case"]: line for line in lines[1:]}
        assert cases or not lines, f"{name}: no case was selected"
        return [ended[case] for case in cases] if ended.keys() >= set(cases) else []

    def _lines(self) -> list[Any]:
        text = self._outcomes.read_text() if self._outcomes.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture(scope="module")
def vllm_tests(
    vllm_python: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmTests]:
    chosen: list[Any] = [item for item in request.session.items if "vllm_tests" in getattr(item, "fixturenames", ())]
    wanted = [f"tests/vllm/{item.callspec.params['name'].replace('::', '.py::', 1)}" for item in chosen]
    folder = tmp_path_factory.mktemp("vllm")
    outcomes, output = folder / "outcomes.jsonl", folder / "output"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINAR_", "PYTHON", "RAY_"))}
    command = [str(vllm_python), "-m", "pytest", "-c", "tests/vllm/pytest.ini", "--rootdir", ".", *wanted]
    environment = {**kept, **ONE_THREAD, "PYTHONPATH": str(ROOT), "VLLM_OUTCOMES": str(outcomes)}
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield VllmTests(process, outcomes, output)
    finally:
        process.terminate()
        process.wait()


def _name_of(case: str) -> str:
    module, name, *_ = case.partition("[")[0].removeprefix("tests/vllm/").split("::")
    return f"{module.removesuffix('.py')}::{name}"


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.parametrize("name", list(_names()))
def test_vllm_passes_in_its_own_environment(name: str, vllm_tests: VllmTests) -> None:
    outcomes = vllm_tests.wait_for(name)
    faults = "\n".join(each["faults"] for each in outcomes if each["faults"])
    assert not faults, faults
    if all(each["skipped"] for each in outcomes):
        pytest.skip(outcomes[0]["skipped"])


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The interpreter of a copy of Laminar with a finished vLLM environment."""
    python = tmp_path / ".laminar" / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / ".laminar" / "vllm" / "laminar-stamp.json").write_text("{}")
    return python


def test_the_copys_own_environment_is_found(own: Path, tmp_path: Path) -> None:
    assert find_vllm_python("", root=tmp_path) == own


def test_interpreter_named_by_the_operator_comes_first(own: Path, tmp_path: Path) -> None:
    assert find_vllm_python(sys.executable, root=tmp_path) == Path(sys.executable)


@pytest.mark.parametrize("named", ["python3", "/nowhere/python"])
def test_named_path_without_interpreter_is_refused(own: Path, tmp_path: Path, named: str) -> None:
    with pytest.raises(ValueError, match=f"LAMINAR_VLLM_PYTHON: .*{named}"):
        find_vllm_python(named, root=tmp_path)


def test_unfinished_environment_is_refused_with_the_command(own: Path, tmp_path: Path) -> None:
    (own.parent.parent / "laminar-stamp.json").unlink()
    with pytest.raises(ValueError, match="`make vllm`"):
        find_vllm_python("", root=tmp_path)


def test_a_mere_folder_called_vllm_is_not_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="none was found"):
        find_vllm_python("", root=tmp_path)


def test_an_interpreter_that_has_vllm_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_vllm_python("", root=tmp_path) == Path(sys.executable)
