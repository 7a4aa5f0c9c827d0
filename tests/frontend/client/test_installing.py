"""The package installs without the rest of this project, and its documentation is up to date."""

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CLIENT = ROOT / "frontend" / "client"
ALLOWED = {"httpx", "click", "rich", "yaml"} | set(sys.stdlib_module_names)


def test_the_reference_in_the_readme_is_up_to_date() -> None:
    script = (
        "import frontend.client.reference as r; t = r.README.read_text(); raise SystemExit(t != r.with_reference(t))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run python -m frontend.client.reference {done.stderr}"


def test_it_imports_only_what_it_declares() -> None:
    outside = set()
    for path in (CLIENT / "laminar_client").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                outside |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                outside.add(node.module.partition(".")[0])
    assert outside <= ALLOWED


def test_looking_at_the_help_loads_nothing_heavy() -> None:
    script = "import laminar_client.__main__, sys; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CLIENT, capture_output=True, text=True, check=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT)},
    )  # fmt: skip
    assert not {"torch", "django", "numpy", "ray", "pydantic", "engine", "backend"} & set(ast.literal_eval(done.stdout))


@pytest.mark.long
@pytest.mark.e2e
def test_a_wheel_installs_into_an_empty_environment_and_runs(tmp_path: Path) -> None:
    """Without network: the wheel is built with this environment's setuptools, and its dependencies are from here."""
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", str(CLIENT), str(source)], check=True)
    subprocess.run([*build, "-w", str(tmp_path), str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
    ]  # installing pip there would take longest
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "-q", str(wheel)], check=True)
    borrowed = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "laminar", "--version"], capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(borrowed)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == "laminar 0.1.0\n", done.stderr
    located = subprocess.run(
        [python, "-c", "import laminar_client; print(laminar_client.__file__)"], capture_output=True, text=True,
        env={"PYTHONPATH": str(borrowed)}, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert str(tmp_path / "venv") in located.stdout
