"""`make test` runs every test once, whatever it is marked with and wherever it lies, and compiles no module twice."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from infra.local.home import Home
from infra.local.parts import WITH_THE_ENGINE, parts
from infra.local.services import Site
from infra.local.testing import environment_of_tests

MARKED = """
import pytest
def test_plain(): pass
@pytest.mark.ray
def test_with_ray(): pass
@pytest.mark.ray
@pytest.mark.vllm
def test_with_ray_and_vllm(): pass
@pytest.mark.vllm
def test_with_vllm(): pass
@pytest.mark.e2e
def test_end_to_end(): pass
@pytest.mark.sandbox
def test_in_the_sandbox(): pass
@pytest.mark.ray
@pytest.mark.soak
def test_long_with_ray(): pass
@pytest.mark.soak
def test_long(): pass
"""
MARKS = ("ray", "e2e", "vllm", "sandbox", "soak")


def test_each_test_but_the_long_ones_is_in_exactly_one_part(tmp_path: Path) -> None:
    rooms = {"", "backend", "backend/jobs", "engine/live", "frontend", *WITH_THE_ENGINE}
    folders = [tmp_path / "tests" / room for room in rooms]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"test_{folder.name}.py").write_text(MARKED)
    ini = tmp_path / "pytest.ini"
    ini.write_text("[pytest]\ntestpaths = tests\nmarkers =" + "".join(f"\n    {mark}" for mark in MARKS))
    found: Counter[str] = Counter()
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take seconds to load
    for chosen in parts(tmp_path).values():
        command = [sys.executable, "-m", "pytest", "-c", str(ini), "-q", "--collect-only", *chosen]
        said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        found.update(line for line in said.stdout.splitlines() if "::" in line)
    assert set(found.values()) == {1}
    assert len(found) == len(folders) * 6
    assert not any("test_long" in name for name in found)


def test_processes_of_site_and_tests_keep_their_bytecode_whatever_the_shell_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    home = Home(tmp_path / "home")
    home.prepare()
    command = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    site = Site(home=home, ports=home.ports(preferred={}))
    for environment in (environment_of_tests(site), site.control_environment(), site.ray.environment()):
        assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == "False\n"
    home.forget_alias()
