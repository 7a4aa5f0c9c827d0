"""The vLLM rollout engine: runs its tests in vLLM's own environment, and tests the search for that environment.

Invariants:
- each test function and test class of `tests/vllm` is one test here, so the suite can retry it alone;
- all selected tests run in one process: starting vLLM takes longer than most of them.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from engine.inference.vllm.interpreter import find_vllm_python
from infra.suite.speed import scale

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests" / "vllm"
WITHIN_S = 840.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""With matrices as small as in these tests, two threads mostly spin and wait for each other: three times the work."""


def _names() -> Iterator[str]:
    """Parsed, not imported: the modules import vLLM, which this environment lacks."""
    for file in sorted(FOLDER.glob("*_in_vllm.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.startswith(("test_", "Test")):
                yield f"{file.stem}::{node.name}"


@pytest.fixture(scope="module")
def outcomes(
    vllm_python: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """For each selected test one text per case: empty if the case passed, otherwise its traceback."""
    chosen: list[Any] = [item for item in request.session.items if "outcomes" in getattr(item, "fixturenames", ())]
    wanted = [item.callspec.params["name"] for item in chosen]
    file = tmp_path_factory.mktemp("vllm") / "outcomes.xml"
    asked = [f"tests/vllm/{name.replace('::', '.py::', 1)}" for name in wanted]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINAR_", "PYTHON", "RAY_"))}
    done = subprocess.run(
        [vllm_python, "-m", "pytest", "-c", "tests/vllm/pytest.ini", "--rootdir", ".", f"--junit-xml={file}", *asked],
        cwd=ROOT,
        env={**kept, **ONE_THREAD, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S * scale(),
    )
    print(done.stdout[-8_000:], done.stderr[-2_000:])
    assert file.is_file(), f"vLLM's pytest ended with {done.returncode}"
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(file).iter("testcase"):
        module, _, class_name = case.attrib["classname"].removeprefix("tests.vllm.").partition(".")
        name = f"{module}::{class_name or case.attrib['name'].partition('[')[0]}"
        found.setdefault(name, []).append(_fault_of(case))
    return found


def _fault_of(case: ElementTree.Element) -> str:
    faults = [part for part in case if part.tag in ("failure", "error")]
    return "\n".join(f"{case.attrib['name']}\n{part.text or part.attrib.get('message')}" for part in faults)


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.parametrize("name", list(_names()))
def test_vllm_passes_in_its_own_environment(name: str, outcomes: dict[str, list[str]]) -> None:
    assert outcomes.get(name), "none of its cases ran"
    assert not any(outcomes[name]), "\n".join(filter(None, outcomes[name]))


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
