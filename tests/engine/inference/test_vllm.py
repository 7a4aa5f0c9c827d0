"""The rollout engine that is vLLM: its tests run in vLLM's own environment; how that is found is tested here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.inference.vllm.interpreter import find_vllm_python

ROOT = Path(__file__).resolve().parents[3]
WITHIN_S = 900
ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Two threads wait for each other, spinning, over matrices as small as those of these tests: three times the work."""


@pytest.mark.long
@pytest.mark.vllm
def test_vllm_passes_its_tests_in_its_own_environment(vllm_python: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINAR_", "PYTHON", "RAY_"))}
    done = subprocess.run(
        [vllm_python, "-m", "pytest", "-c", "tests/vllm/pytest.ini", "--rootdir", ".", "tests/vllm"],
        cwd=ROOT,
        env={**kept, **ONE_THREAD, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    print(done.stdout[-8_000:], done.stderr[-2_000:])
    assert done.returncode == 0


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A copy of Laminar whose environment for vLLM is finished; the interpreter in it."""
    python = tmp_path / ".laminar" / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / ".laminar" / "vllm" / "laminar-stamp.json").write_text("{}")
    return python


def test_the_copys_own_environment_is_found(own: Path, tmp_path: Path) -> None:
    assert find_vllm_python("", root=tmp_path) == own


def test_what_the_operator_named_comes_first(own: Path, tmp_path: Path) -> None:
    assert find_vllm_python(sys.executable, root=tmp_path) == Path(sys.executable)


@pytest.mark.parametrize("named", ["python3", "/nowhere/python"])
def test_a_named_interpreter_that_is_none_is_refused_even_where_there_is_another(
    own: Path, tmp_path: Path, named: str
) -> None:
    with pytest.raises(ValueError, match=f"LAMINAR_VLLM_PYTHON: .*{named}"):
        find_vllm_python(named, root=tmp_path)


def test_an_unfinished_environment_does_not_count_and_the_command_is_told(own: Path, tmp_path: Path) -> None:
    (own.parent.parent / "laminar-stamp.json").unlink()
    with pytest.raises(ValueError, match="`make vllm`"):
        find_vllm_python("", root=tmp_path)


def test_a_mere_folder_called_vllm_is_not_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="none is here"):
        find_vllm_python("", root=tmp_path)


def test_an_interpreter_that_has_vllm_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_vllm_python("", root=tmp_path) == Path(sys.executable)
