"""git's pre-commit hook: installed by `make setup-dev`, kept if it is another's, and it refuses what ruff refuses."""

import subprocess
from pathlib import Path

import pytest

from infra.setup.hook import HOOK, install_hook

RUFF_REFUSES = "#!/bin/sh\nexit 1\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for name, value in (("user.name", "a"), ("user.email", "a@example.org")):
        subprocess.run(["git", "config", name, value], cwd=tmp_path, check=True)
    return tmp_path


def commit(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = ["git", "commit", "--allow-empty", "-m", "a"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


def python_says(checkout: Path, script: str) -> None:
    python = checkout / ".laminar" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(script)
    python.chmod(0o755)


def test_what_ruff_refuses_is_not_committed(checkout: Path) -> None:
    install_hook(checkout)
    python_says(checkout, RUFF_REFUSES)
    refused = commit(checkout)
    assert refused.returncode != 0 and "make format" in refused.stderr


def test_commits_pass_where_nothing_is_set_up(checkout: Path) -> None:
    install_hook(checkout)
    assert commit(checkout).returncode == 0


def test_anothers_hook_stays_and_ours_is_renewed(checkout: Path) -> None:
    install_hook(checkout)
    hook = checkout / ".git" / "hooks" / "pre-commit"
    hook.write_text(HOOK.replace("exit 1", "exit 2"))
    install_hook(checkout)
    assert hook.read_text() == HOOK
    hook.write_text("#!/bin/sh\n")
    install_hook(checkout)
    assert hook.read_text() == "#!/bin/sh\n"


def test_outside_of_git_nothing_is_written(tmp_path: Path) -> None:
    install_hook(tmp_path)
    assert list(tmp_path.iterdir()) == []
