"""`make help` lists every command that a person gives, and make itself copes with a space in the path."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOR_PEOPLE = {"demo", "check", "test", "test-long", "soak", "rehearse", "vllm", "up", "down", "status", "logs"}
FOR_PEOPLE |= {"backup", "restore", "lint", "lock", "migration", "format", "help"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The Makefile in a path with a space, with a set-up that does nothing."""
    folder = tmp_path / "a copy"
    (folder / "infra").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "infra" / "setup.py").write_text("")
    return folder


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "--no-print-directory", *words], cwd=folder, capture_output=True, text=True)


def test_make_alone_lists_every_command_with_a_comment() -> None:
    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", make(ROOT).stdout, re.MULTILINE))
    assert set(listed) == FOR_PEOPLE
    assert make(ROOT, "help").stdout == make(ROOT).stdout


def test_every_command_is_a_word_to_make_and_no_file() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony and set(phony[1].split()) >= FOR_PEOPLE


@pytest.mark.parametrize("command", ["demo", "up", "status"])
def test_a_path_with_a_space_reaches_python_in_one_piece(copy: Path, command: str) -> None:
    python = copy / ".laminar" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    python.chmod(0o755)
    done = make(copy, command, 'ARGS=--for "two words"')
    assert done.stdout == f"<-m><infra.local><{command}><--for><two words>", done.stderr


@pytest.mark.parametrize("command", ["down", "status", "logs"])
def test_where_nothing_is_set_up_nothing_is_set_up_to_say_so(copy: Path, command: str) -> None:
    done = make(copy, command)
    assert done.returncode == 0 and "Nothing is set up here" in done.stdout
    assert not (copy / ".laminar").exists()


def test_ci_runs_what_the_readme_says() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "make lint" in script and "make test" in script and "CI=true" in script
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
