"""Processes of a site, and of the tests, keep their bytecode: compiled again at each start, they take longer than their
work."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.local.home import Home
from infra.local.ports import PORT_NAMES
from infra.local.services.site import Site
from infra.local.testing import environment_of_tests


def test_bytecode_is_cached_even_if_the_shell_disables_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    home = Home(tmp_path / "home")
    home.prepare()
    command = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    site = Site(home=home, ports=dict.fromkeys(PORT_NAMES, 1))
    for environment in (environment_of_tests(site), site.control_environment(), site.ray.environment()):
        assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == "False\n"
